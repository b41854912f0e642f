"""Adds the service ``jobs`` to a resident agent."""

from __future__ import annotations

from ringleader.node.agent.agent_core import AgentCore


def install(core: AgentCore) -> None:
    """Register the service; the agent of a single run has none."""
    if core.config.is_resident:
        # Imported here: every agent imports this module, and most need no jobs.
        from ringleader.jobs.machine.job_service import JobService
        from ringleader.jobs.protocol.messages import PURPOSE

        core.services.register(PURPOSE, JobService(core).serve)
