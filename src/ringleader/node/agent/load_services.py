"""``load_services``: lets higher packages add services to an agent.

A package above ``node`` cannot be imported here. It is named in ``MODULES`` instead,
and defines ``install(core: AgentCore) -> None``, which registers its services:

    def install(core: AgentCore) -> None:
        jobs = JobService(core)
        core.services.register("jobs", jobs.serve)
        core.services.on_stop(jobs.stop)

``install`` is called before the agent accepts connections. Work in the background
belongs into ``core.tasks.run``: a task that fails ends the agent.
"""

from __future__ import annotations

from importlib import import_module

from ringleader.node.agent.agent_core import AgentCore

MODULES: tuple[str, ...] = (
    "ringleader.node.agent.event_service",
    "ringleader.node.agent.permission_service",
    "ringleader.jobs.machine.install_jobs",
    "ringleader.monitoring.install_services",
    "ringleader.node.agent.metrics_service",
)
"""Modules with ``install``, imported by every agent: keep their imports small."""


def load_services(core: AgentCore) -> None:
    """Install the services of all modules."""
    for name in MODULES:
        import_module(name).install(core)
