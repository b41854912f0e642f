"""Every error this package raises, ordered by what the caller should do.

RingleaderError (RuntimeError)
|-- ConfigError (ValueError)        the request is invalid            -> fix the call
|-- PeerError            .peer      one peer failed                   -> do without it
|   |-- PeerUnreachable             it never answered
|   |-- PeerLost                    it answered, then went away
|   |-- PeerUntrusted               it could not prove who it is
|   |-- PeerRefused                 it answered and refused
|   |-- PeerFailed                  its own program raised an error   -> read it
|   |-- ProtocolError               it sent bytes the wire format forbids
|   |-- CallMismatch                it made another call than we did  -> fix the program
|   `-- DeadlineExceeded (TimeoutError)  we stopped waiting; it may live -> try again
|-- GroupAborted                    abort() or close() ended it       -> form a new one
|-- RunError                        an elastic run cannot go on here
|   |-- LayoutMismatch              another member's model differs    -> use one script
|   |-- TooFewMembers               fewer members than min_members      -> start more
|   |-- StateLost                   nobody here has a complete state    -> start again
|   `-- Expelled                    the others went on without us       -> start again
`-- InternalError                   a bug in this library             -> report it

They are RuntimeErrors because torch's own backends raise those, so an ``except``
written for Gloo keeps working. RingleaderError, PeerError, RunError are never raised.
Fields go to ``super().__init__`` and ``__str__`` builds the text, so that an error
survives pickling between processes.
"""

from __future__ import annotations


class RingleaderError(RuntimeError):
    """Base of all errors raised by Ringleader."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class ConfigError(RingleaderError, ValueError):
    """The request is invalid; the text says what to change."""


class InternalError(RingleaderError):
    """A bug in this library; please report it."""


class GroupAborted(RingleaderError):
    """The group was ended on purpose, by ``abort()`` or ``close()``."""


class RunError(RingleaderError):
    """An elastic run cannot go on in this process; nothing else raises out of it."""


class LayoutMismatch(RunError):
    """Another member's model, optimizer or options differ; the text names what."""


class TooFewMembers(RunError):
    """The run has had fewer than ``min_members`` members for too long."""


class StateLost(RunError):
    """No machine that is left has a complete state, and there is no checkpoint here."""


class Expelled(RunError):
    """The other members went on without this process; start it again to rejoin."""


class PeerError(RingleaderError):
    """One peer failed. ``peer`` is its rank, or its address before that is known."""

    def __init__(self, peer: int | str, text: str) -> None:
        Exception.__init__(self, peer, text)
        self.peer = peer
        self.text = text

    def __str__(self) -> str:
        who = f"rank {self.peer}" if isinstance(self.peer, int) else self.peer
        return f"{who}: {self.text}"


class PeerUnreachable(PeerError):
    """The peer never answered."""


class PeerLost(PeerError):
    """The peer answered, then went away."""


class PeerUntrusted(PeerError):
    """The peer could not prove who it is."""


class PeerRefused(PeerError):
    """The peer answered and refused us."""


class PeerFailed(PeerError):
    """The peer's own program raised an error, which the text repeats."""


class ProtocolError(PeerError):
    """The peer sent bytes that the wire format forbids."""


class CallMismatch(PeerError):
    """Two ranks made different calls; ``peer`` is the other one."""


class DeadlineExceeded(PeerError, TimeoutError):
    """We stopped waiting for ``peer``; it may still be alive."""
