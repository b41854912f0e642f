"""Which options of a run the agent that is up cannot serve."""

from __future__ import annotations

import msgspec

from ringleader.node.launch.resident_agent import differing
from ringleader.node.protocol.agent_config import AgentConfig

UP = AgentConfig(home="/h", peers=",a:1,b", profile="wifi", is_resident=True)


def test_what_a_run_leaves_open_may_be_anything() -> None:
    assert differing(UP, AgentConfig(home="/h", peers=",", prints_events=True)) == []
    assert differing(UP, AgentConfig(home="/h", peers="b,a:1", profile="wifi")) == []


def test_what_it_asks_for_must_be_so() -> None:
    wanted = AgentConfig(home="/h", peers="c", interfaces=["eth1"], profile="wan")
    assert differing(UP, wanted) == ["--peers", "--interface", "--profile"]
    silent = msgspec.structs.replace(UP, uses_mdns=False)
    assert differing(silent, AgentConfig(home="/h", port=7)) == ["--port", "--mdns"]
