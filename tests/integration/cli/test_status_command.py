"""``ringleader status`` while no job runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringleader.cli.main import app
from ringleader.identity import known_nodes
from ringleader.identity.known_nodes import KnownNode
from ringleader.identity.node_key import NodeKey, first_key
from ringleader.identity.storage.home import Home
from ringleader.ids import short
from ringleader.testing.node_process import make_home


def test_without_an_agent_status_shows_the_cluster_and_the_known_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(make_home(tmp_path / "home", os.urandom(32)))
    here, other = first_key(home).node_id, NodeKey.ephemeral().node_id
    with home.writing() as change:
        known_nodes.remember(home, change, KnownNode(other, "barn"))
    monkeypatch.setenv("RINGLEADER_HOME", str(home.path))
    monkeypatch.setenv("RINGLEADER_NAME", "attic")

    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == 3
    assert 'cluster "test" (' in done.stdout
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert short(here) in lines["attic"]
    assert "not running" in lines["attic"]
    assert short(other) in lines["barn"]
    assert "ringleader run" in done.stdout
    assert "ringleader doctor" in done.stdout

    done = CliRunner().invoke(app, ["status", "--json"])
    assert done.exit_code == 3
    (report,) = json.loads(done.stdout)
    assert report["from"] == "the files of attic"
    assert [row["node"] for row in report["nodes"]] == [here, other]
    assert report["nodes"][0]["version"]
