"""RegistryRunner gives the registry a clock, a state file and watchers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ringleader.coordinator.registry.events import Event, SaveWorker, Tick
from ringleader.coordinator.registry.records import Namespace
from ringleader.coordinator.registry.state_machine import Registry, Reply
from ringleader.coordinator.server.state_file import StateFile


class RegistryRunner:
    """Runs a registry on one asyncio loop."""

    def __init__(
        self,
        registry: Registry,
        notify: Callable[[Namespace], None],
        state: StateFile | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._notify = notify
        self._state = state
        self._clock = clock

    def step(self, event: Event) -> Reply:
        """Process an event: store what it changes, wake watchers, return the reply."""
        reply, actions = self._registry.step(event, self._clock())
        if actions:
            if self._state is not None:
                self._state.save(actions, self._registry.everything)
            changed: dict[Namespace, None] = {
                action.namespace: None
                for action in actions
                if isinstance(action, SaveWorker)
            }
            for namespace in changed:
                self._notify(namespace)
        return reply

    async def tick_forever(self) -> None:
        """Evict workers whose lease is over."""
        while True:
            self.step(Tick())
            await asyncio.sleep(self._registry.tick_s)
