"""InstalledView: what it frees after its first step."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from ringleader.training.installed_view import InstalledView


class Cycle:
    """Refers to itself, as a closed group does."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _nothing_is_freed_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_the_first_step_frees_what_older_views_left() -> None:
    nothing: Any = None
    view = InstalledView(nothing, nothing, {}, 0)
    old = weakref.ref(Cycle())
    assert old() is not None
    view.step_done()
    assert old() is None


def test_later_steps_do_not_look_again() -> None:
    nothing: Any = None
    view = InstalledView(nothing, nothing, {}, 0)
    view.step_done()
    later = weakref.ref(Cycle())
    view.step_done()
    assert later() is not None
