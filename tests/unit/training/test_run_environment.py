"""A worker learns from its environment to which run it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.identity import join_phrase
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.node.launch.agent_peers import AgentPeers
from ringleader.node.peering.membership_profiles import membership_config
from ringleader.settings.run import RunSettings
from ringleader.testing.run_member import issue_credentials
from ringleader.training.control.run_environment import KnownPeers, run_config


def export(monkeypatch: pytest.MonkeyPatch, run: RunSettings) -> None:
    for name, value in run.environment().items():
        monkeypatch.setenv(name, value)


def test_a_process_without_a_run_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGLEADER_SURVIVE", raising=False)
    assert run_config() is None


def test_a_run_has_an_agent_or_members_named_in_advance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = ClusterSecret.from_phrase(join_phrase.new(), name="home")
    file, node = issue_credentials(tmp_path, cluster)
    run = RunSettings(job="job", is_joiner=False, credentials=str(file))
    export(monkeypatch, run)
    alone = run_config()
    assert alone is not None
    assert isinstance(alone.source, KnownPeers)
    assert alone.credentials.node == node
    monkeypatch.setenv("RINGLEADER_AGENT", "/run/agent.sock")
    monkeypatch.setenv("RINGLEADER_PLAINTEXT", "1")  # about tensors only
    found = run_config()
    assert found is not None
    assert isinstance(found.source, AgentPeers)
    monkeypatch.setenv("RINGLEADER_CREDENTIALS", "")
    with pytest.raises(ConfigError, match="ringleader run --survive"):
        run_config()


@pytest.mark.parametrize(
    ("profile", "dead_after_s"), [("loopback", 3.75), ("lan", 3.75), ("wifi", 12.0)]
)
def test_a_run_waits_for_silent_members_as_long_as_the_agents_do(
    profile: str,
    dead_after_s: float,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """At least as long as is usual for a run."""
    cluster = ClusterSecret.from_phrase(join_phrase.new(), name="home")
    file, _ = issue_credentials(tmp_path, cluster)
    silence_s = membership_config(profile).dead_after_s
    run = RunSettings(
        job="job", is_joiner=False, credentials=str(file), silence_s=silence_s
    )
    export(monkeypatch, run)
    found = run_config()
    assert found is not None
    assert found.timing.dead_after_s == dead_after_s
