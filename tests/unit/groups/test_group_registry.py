"""The open groups of a process are listed while other threads open and drop some."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from ringleader.groups import group_registry, observation

BUSY_S = 0.5


class Made:
    """Stands for a group and for its handle; both are only listed here."""

    is_open = True


def remember_group(made: Made) -> None:
    group_registry._open_groups[id(made)] = cast("Any", made)


def remember_handle(made: Made) -> None:
    observation._observers[cast("Any", made)] = {}


@contextmanager
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("remember", "list_all"),
    [
        (remember_group, group_registry.open_groups),
        (remember_handle, observation.open_handles),
    ],
)
def test_groups_are_listed_while_other_threads_form_some(
    remember: Callable[[Made], None], list_all: Callable[[], list[Any]]
) -> None:
    kept = Made()
    remember(kept)
    is_over = threading.Event()

    def form_and_drop() -> None:
        while not is_over.is_set():
            made = [Made() for _ in range(30)]
            for each in made:
                remember(each)

    thread = threading.Thread(target=form_and_drop)
    until_s = time.monotonic() + BUSY_S
    with many_switches():
        thread.start()
        try:
            while time.monotonic() < until_s:
                found = list_all()
                assert kept in found
                assert None not in found
        finally:
            is_over.set()
            thread.join()
