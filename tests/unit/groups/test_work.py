"""Work: what follows an operation runs, whatever signal handlers raise."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ringleader.groups.work import Work


class Stop(Exception):
    """What a handler of a program raises."""


@pytest.fixture
def _handler() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_handler")
def test_a_signal_in_a_follower_is_raised_when_all_followers_have_run() -> None:
    """DDP waited for ever for a future that such a follower was completing."""
    called = list[str]()

    def interrupted() -> None:
        called.append("first")
        if called.count("first") == 1:
            signal.raise_signal(signal.SIGUSR1)
        called.append("end of first")

    work = Work()
    work.when_done(interrupted)
    work.when_done(lambda: called.append("second"))
    with pytest.raises(Stop):
        work.finish()
    assert called == ["first", "first", "end of first", "second"]
    assert work.done()
    assert work.error() is None
