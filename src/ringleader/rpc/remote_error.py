"""RemoteError: a function that another rank ran for us raised an exception."""

from __future__ import annotations

from ringleader.errors import PeerError, PeerFailed, PeerRefused
from ringleader.rpc.messages import Failure


class RemoteError(PeerFailed):
    """The called function raised; ``kind`` is the name of the exception's class.

    ``text`` is its text and ``traceback`` where it happened, on rank ``peer``.
    """

    def __init__(self, peer: int, text: str, kind: str, traceback: str) -> None:
        Exception.__init__(self, peer, text, kind, traceback)
        self.peer = peer
        self.text = text
        self.kind = kind
        self.traceback = traceback

    def __str__(self) -> str:
        first = f"rank {self.peer}: {self.kind}: {self.text}"
        return f"{first}\n\nOn rank {self.peer}:\n{self.traceback}".rstrip()


def again(error: Exception) -> Exception:
    """Return an equal error, to be raised by another call.

    Python adds the frames of every raise to an error: one that is kept and raised often
    would keep the arguments of all these calls.
    """
    return type(error)(*error.args)


def error_of(failure: Failure, peer: int) -> PeerError:
    """Return the error that a failure of ``peer`` stands for."""
    if failure.kind:
        return RemoteError(peer, failure.text, failure.kind, failure.traceback)
    return PeerRefused(peer, failure.text)
