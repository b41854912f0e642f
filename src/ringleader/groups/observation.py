"""observe_groups: attaches an observer to every group of this process.

Metrics and traces begin and end while groups are open. Each registers a function that
makes the observer of one group.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from ringleader.engine.observer import Observer, Observers
from ringleader.groups.handle import GroupHandle

MakeObserver = Callable[[GroupHandle], Observer]

_lock = threading.Lock()
_makers: list[MakeObserver] = []
_observers: weakref.WeakKeyDictionary[GroupHandle, dict[MakeObserver, Observer]] = (
    weakref.WeakKeyDictionary()
)
"""The observers of each group, by what made them. A group that is closed stays here
until it is collected as garbage."""


def observe_groups(make: MakeObserver) -> Callable[[], None]:
    """Let ``make(handle)`` observe every group that is open now or opened later.

    Returns a function that ends this; it does not call ``closed``. Calls that are
    running at that moment may be told in part.
    """
    with _lock:
        _makers.append(make)
        for handle in open_handles():
            _add(handle, make)

    def stop() -> None:
        with _lock:
            if make in _makers:
                _makers.remove(make)
            for handle, observers in list(_observers.items()):
                if observers.pop(make, None) is not None and handle.is_open:
                    _install(handle)

    return stop


def attach_observers(handle: GroupHandle) -> None:
    """Attach all observers to a group that was just opened."""
    with _lock:
        _observers[handle] = {}
        for make in _makers:
            _add(handle, make)


def open_handles() -> list[GroupHandle]:
    """The groups of this process that are open; others may be opened meanwhile."""
    handles = [ref() for ref in _observers.keyrefs()]  # copied at once
    return [each for each in handles if each is not None and each.is_open]


def _add(handle: GroupHandle, make: MakeObserver) -> None:
    _observers[handle][make] = make(handle)
    _install(handle)


def _install(handle: GroupHandle) -> None:
    observers = list(_observers[handle].values())
    if len(observers) > 1:
        handle.observe(Observers(observers))
    else:
        handle.observe(observers[0] if observers else None)
