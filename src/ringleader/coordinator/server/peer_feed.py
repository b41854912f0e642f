"""PeerFeed wakes the watchers of a namespace when its workers change.

Watchers of one namespace are woken together, and not for every single change: when 500
workers register within a second, 500 watchers would otherwise get 250,000 messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ringleader.coordinator.registry.records import Namespace, PeerChanges
from ringleader.coordinator.registry.state_machine import Registry
from ringleader.errors import ConfigError

MAX_WATCHERS = 16384

_GAP_S = 0.02
_GAP_PER_WATCHER_S = 0.001
"""Least time between two updates: 20 ms in a home, half a second with 500 watchers."""

T = TypeVar("T")


@dataclass(slots=True)
class _Topic(Generic[T]):
    """The watchers of one namespace."""

    num_watchers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once, at the next update, and then replaced by a new one."""
    updated_at_s: float = 0.0
    is_scheduled: bool = False
    rendered: dict[int, T] = field(default_factory=dict)
    """Version that watchers know -> what they are sent; until the next update."""


class PeerFeed(Generic[T]):
    """Sends changes to watchers. Use it from one asyncio loop.

    ``render`` makes the messages of a change; watchers that know the same share them.
    """

    def __init__(self, registry: Registry, render: Callable[[PeerChanges], T]) -> None:
        self._registry = registry
        self._render = render
        self._topics: dict[Namespace, _Topic[T]] = {}
        self._num_watchers = 0

    def notify(self, namespace: Namespace) -> None:
        """Wake the watchers of a namespace, soon."""
        topic = self._topics.get(namespace)
        if topic is None:
            return
        topic.rendered.clear()
        if topic.is_scheduled:
            return
        loop = asyncio.get_running_loop()
        gap_s = _GAP_S + _GAP_PER_WATCHER_S * topic.num_watchers
        topic.is_scheduled = True
        loop.call_at(topic.updated_at_s + gap_s, self._update, topic)

    def _update(self, topic: _Topic[T]) -> None:
        topic.is_scheduled = False
        topic.updated_at_s = asyncio.get_running_loop().time()
        topic.changed.set()
        topic.changed = asyncio.Event()

    async def watch(self, namespace: Namespace) -> AsyncGenerator[T]:
        """Yield all workers, then every change; never ends by itself."""
        if self._num_watchers >= MAX_WATCHERS:
            raise ConfigError(f"this coordinator has {MAX_WATCHERS} watchers")
        topic = self._topics.setdefault(namespace, _Topic())
        topic.num_watchers += 1
        self._num_watchers += 1
        version = -1
        try:
            while True:
                # Taken before the look: a change after the look sets this event.
                changed = topic.changed
                changes = self._registry.changes_since(namespace, version)
                if changes is not None:
                    yield self._rendered(topic, version, changes)
                    version = changes.version
                await changed.wait()
        finally:
            self._num_watchers -= 1
            topic.num_watchers -= 1
            if not topic.num_watchers:
                del self._topics[namespace]

    def _rendered(self, topic: _Topic[T], version: int, changes: PeerChanges) -> T:
        found = topic.rendered.get(version)
        if found is None:
            found = topic.rendered[version] = self._render(changes)
        return found
