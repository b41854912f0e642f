"""Registers the services of ``monitoring`` at an agent, without importing them.

Most agents end before somebody looks at a dashboard, and their start must not wait for
the modules behind it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringleader.monitoring.messages import DASHBOARD, MACHINE, PAGE
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.service_stream import ServiceStream

if TYPE_CHECKING:
    from ringleader.monitoring.dashboard_service import Monitoring


def install(core: AgentCore) -> None:
    """Register the services at an agent."""
    lazy = LazyMonitoring(core)

    async def serve_dashboard(stream: ServiceStream) -> None:
        await (await lazy.get()).serve_dashboard(stream)

    async def serve_page(stream: ServiceStream) -> None:
        await (await lazy.get()).serve_page(stream)

    async def serve_machine(stream: ServiceStream) -> None:
        await (await lazy.get()).serve_machine(stream)

    core.services.register(DASHBOARD, serve_dashboard, for_peers=False)
    core.services.register(PAGE, serve_page, for_peers=False)
    core.services.register(MACHINE, serve_machine)
    core.services.on_stop(lazy.stop)


class LazyMonitoring:
    """Makes ``Monitoring`` when a service is first used."""

    def __init__(self, core: AgentCore) -> None:
        self._core = core
        self._made: Monitoring | None = None

    async def get(self) -> Monitoring:
        """Return it; imports its modules in a thread, beside the event loop."""
        kind = await asyncio.to_thread(_import_monitoring)
        if self._made is None:
            self._made = kind(self._core)
        return self._made

    async def stop(self) -> None:
        """End it, if it was made."""
        if self._made is not None:
            await self._made.stop()


def _import_monitoring() -> type[Monitoring]:
    from ringleader.monitoring.dashboard_service import Monitoring

    return Monitoring
