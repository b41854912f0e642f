"""What ``ringleader up`` says about ``--warm``."""

from __future__ import annotations

import msgspec

from ringleader.cli.up_report import warmth
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.resident_record import ResidentRecord

COLD = ResidentRecord(
    pid=1, version="0", cluster="c", socket="s", config=AgentConfig(home="/h")
)


def test_it_says_whether_runs_start_sooner() -> None:
    config = AgentConfig(home="/h", warm=True)
    starting = msgspec.structs.replace(COLD, config=config)
    ready = msgspec.structs.replace(starting, warm="name")
    assert warmth(COLD) == ""
    assert warmth(starting).startswith("Not warm yet")
    assert warmth(ready).startswith("Warm: ")
