"""Functions around the start of a call, which may end in another thread later on."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial

from ringleader.engine.arrays_by_address import Addresses
from ringleader.engine.call import Call
from ringleader.engine.engine import Finish, Start
from ringleader.engine.observer import Observer, now_s


def watched_start(
    start: Start,
    call: Call,
    observer: Observer | None,
    context: Context,
    note: Callable[[Call | None], None],
) -> Start:
    """``start``, which begins calls like ``call``, and the rest of each in ``context``.

    ``observer`` is told of each. ``note`` learns which one runs or has failed.
    """

    def begin() -> float:
        since_s = 0.0
        note(call)
        if observer is not None:
            since_s = now_s()
            observer.began(call, since_s)
        return since_s

    def end(since_s: float, error: BaseException | None) -> None:
        if error is None:
            note(None)
        if observer is not None:
            observer.ended(call, since_s, now_s(), error)

    return _in_context(context, _around(start, begin, end))


def _around(
    start: Start,
    begin: Callable[[], float],
    end: Callable[[float, BaseException | None], None],
) -> Start:
    """``start``, with ``begin`` before it and ``end`` when its call has ended."""

    def run(addresses: Addresses) -> Finish | None:
        begun = begin()
        try:
            finish = start(addresses)
        except BaseException as exc:
            end(begun, exc)
            raise
        if finish is None:
            end(begun, None)
            return None
        return partial(rest, begun, finish)

    def rest(begun: float, finish: Finish) -> None:
        try:
            finish()
        except BaseException as exc:
            end(begun, exc)
            raise
        end(begun, None)

    return run


def _in_context(context: Context, start: Start) -> Start:
    """``start`` and the rest of its calls, run in ``context``."""

    def run(addresses: Addresses) -> Finish | None:
        finish = context.run(start, addresses)
        return None if finish is None else partial(context.run, finish)

    return run
