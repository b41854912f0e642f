"""A worker learns from its environment to which run it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.identity import join_phrase
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.node.launch.agent_peers import AgentPeers
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
