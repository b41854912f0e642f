"""Observer: what a group tells about its collective calls, and what measures by it.

This is the only instrumentation point of the data path. Metrics and traces are
observers. A group without one makes the same calls as if this module did not exist: the
executor wraps calls only while there is an observer, and the clock is not read.

All times are ``now_s()``, which has the highest resolution and one origin for all
threads of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol

from ringleader.codec.codec import Codec, Data, Values
from ringleader.engine.call import Call
from ringleader.engine.engine import Prepared

now_s = time.perf_counter

P = ParamSpec("P")


class Observer(Protocol):
    """Follows the calls of one group, in the thread that runs them, one at a time.

    A method must not raise, wait or call the group: the other ranks wait meanwhile.
    Peers are ranks of the group.
    """

    def watch(self, call: Call, run: Prepared) -> Prepared:
        """Return ``run``, which repeats ``call``, with each of its runs observed.

        It is asked once per kind of call, so that what is known of the kind need not be
        looked up in each run.
        """
        ...

    def began(self, call: Call, at_s: float) -> None:
        """Note that ``call`` begins; operation, bytes and algorithm are known."""
        ...

    def waited(self, peer: int, since_s: float, until_s: float) -> None:
        """Note that the running call could not go on until ``peer`` did something."""
        ...

    def coded(
        self,
        step: str,
        codec: str,
        raw_bytes: int,
        coded_bytes: int,
        since_s: float,
        until_s: float,
    ) -> None:
        """Note that the running call did ``step``, "encode" or "decode"."""
        ...

    def ended(
        self, call: Call, since_s: float, until_s: float, error: BaseException | None
    ) -> None:
        """Note that ``call``, which began at ``since_s``, has ended."""
        ...

    def closed(self) -> None:
        """Note that the group is closing; its links can be read for the last time."""
        ...


class Observers:
    """Several observers of one group, told in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def watch(self, call: Call, run: Prepared) -> Prepared:
        """See Observer."""
        return observed(self, call, run)

    def began(self, call: Call, at_s: float) -> None:
        """See Observer."""
        for each in self._observers:
            each.began(call, at_s)

    def waited(self, peer: int, since_s: float, until_s: float) -> None:
        """See Observer."""
        for each in self._observers:
            each.waited(peer, since_s, until_s)

    def coded(
        self,
        step: str,
        codec: str,
        raw_bytes: int,
        coded_bytes: int,
        since_s: float,
        until_s: float,
    ) -> None:
        """See Observer."""
        for each in self._observers:
            each.coded(step, codec, raw_bytes, coded_bytes, since_s, until_s)

    def ended(
        self, call: Call, since_s: float, until_s: float, error: BaseException | None
    ) -> None:
        """See Observer."""
        for each in self._observers:
            each.ended(call, since_s, until_s, error)

    def closed(self) -> None:
        """See Observer."""
        for each in self._observers:
            each.closed()


def observed(
    observer: Observer, call: Call, run: Callable[P, None]
) -> Callable[P, None]:
    """``run``, which does calls like ``call``, with each of its runs observed."""

    began, ended = observer.began, observer.ended

    def observed_run(*args: P.args, **kwargs: P.kwargs) -> None:
        since_s = now_s()
        began(call, since_s)
        try:
            run(*args, **kwargs)
        except BaseException as exc:
            ended(call, since_s, now_s(), exc)
            raise
        ended(call, since_s, now_s(), None)

    return observed_run


class ObservedCodec:
    """A codec whose steps are observed."""

    def __init__(self, codec: Codec, observer: Observer) -> None:
        self.name = codec.name
        self.num_bytes = codec.num_bytes
        self._codec = codec
        self._observer = observer

    def encode(
        self, values: Values, data: Data, error_out: Values | None = None
    ) -> None:
        """See Codec."""
        since_s = now_s()
        self._codec.encode(values, data, error_out)
        sizes = values.nbytes, data.nbytes
        self._observer.coded("encode", self.name, *sizes, since_s, now_s())

    def decode(self, data: Data, values: Values) -> None:
        """See Codec."""
        since_s = now_s()
        self._codec.decode(data, values)
        sizes = values.nbytes, data.nbytes
        self._observer.coded("decode", self.name, *sizes, since_s, now_s())
