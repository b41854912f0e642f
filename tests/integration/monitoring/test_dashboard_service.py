"""The dashboard of real agents: two members, loads, numbers of a worker, the link."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ringleader.errors import ConfigError
from ringleader.monitoring.messages import OpenDashboard
from ringleader.monitoring.number_folders import make_number_folder
from ringleader.monitoring.open_dashboard import PageReader, open_dashboard
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.testing.node_process import make_home
from tests.kit.dashboard_client import DashboardClient

PATIENCE_S = 120.0
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def start(home: Path, name: str, stack: ExitStack) -> AgentProcess:
    return stack.enter_context(
        AgentProcess.start(
            AgentConfig(
                home=str(home), interfaces=[LOOPBACK], profile="loopback", name=name
            )
        )
    )


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The homes of two machines whose agents run."""
    root, folder = os.urandom(32), tmp_path_factory.mktemp("homes")
    made = (make_home(folder / "a", root), make_home(folder / "b", root))
    with ExitStack() as stack:
        start(made[0], "anna", stack)
        start(made[1], "ben", stack)
        yield made


def test_each_machine_shows_its_load_on_the_page_of_another(
    homes: tuple[Path, Path],
) -> None:
    opened = open_dashboard(homes[0], OpenDashboard())
    client = DashboardClient(opened.url)
    assert client.address[0] == "127.0.0.1"
    assert client.ask("GET", "/state")[0] == 401
    client.open()
    machines = wait_for_loads(client)
    assert {row["name"] for row in machines.values()} == {"anna", "ben"}
    for row in machines.values():
        assert 0 < row["load"]["memory_used_bytes"] < row["load"]["memory_total_bytes"]
    again = open_dashboard(homes[0], OpenDashboard())
    assert DashboardClient(again.url).address == client.address
    assert again.url != opened.url, "a new token"
    assert client.ask("GET", "/state", Host="evil.example")[0] == 403


def wait_for_loads(client: DashboardClient) -> dict[str, Any]:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        status, state = client.ask("GET", "/state")
        assert status == 200
        rows: dict[str, Any] = state["machines"]
        if len(rows) == 2 and all(row["load"] for row in rows.values()):
            return rows
        assert time.monotonic() < until_s, state
        time.sleep(0.2)


def test_commands_read_the_state_of_the_page(homes: tuple[Path, Path]) -> None:
    reader = PageReader.connect(homes[1])
    try:
        for _ in range(3):
            machines = reader.read()["machines"].values()
            assert any(row["is_here"] for row in machines)
    finally:
        reader.close()


def test_without_an_agent_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ringleader up"):
        open_dashboard(tmp_path, OpenDashboard())


def test_the_dashboard_ends_with_its_agent(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", os.urandom(32))
    with ExitStack() as stack:
        start(home, "carla", stack)
        client = DashboardClient(open_dashboard(home, OpenDashboard()).url)
        client.open()
        reader = PageReader.connect(home)
        stack.callback(reader.close)
        assert reader.read()["machines"]
        stack.close()
    with pytest.raises(OSError, match="refused"):
        client.ask("GET", "/state")


def test_a_folder_of_numbers_lives_as_long_as_its_launcher(tmp_path: Path) -> None:
    with make_number_folder(tmp_path, "job") as folder:
        assert folder.is_dir()
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()
    dead = folder.parent / "4194305"  # beyond the largest process id of Linux
    dead.mkdir(parents=True)
    with make_number_folder(tmp_path, "other"):
        assert not dead.exists()


def test_top_prints_once_into_a_pipe(homes: tuple[Path, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ringleader", "top"],
        env={**os.environ, "RINGLEADER_HOME": str(homes[0])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "anna" in done.stdout
    assert "leader" in done.stdout


def test_a_phone_looks_by_a_code_but_stops_nothing(homes: tuple[Path, Path]) -> None:
    opened = open_dashboard(homes[0], OpenDashboard(is_shared=True))
    assert len(opened.code) == 8
    assert len(opened.fingerprint) == 64
    phone = DashboardClient(opened.url)
    assert phone.url.startswith("https://")
    assert phone.ask("GET", "/state")[0] == 401
    key = wait_for_code(phone, opened.code)
    phone.key = key
    assert phone.ask("GET", "/state")[0] == 200
    assert phone.ask("GET", "/state", Host="127.0.0.1:1")[0] == 403
    status, found = phone.ask("POST", "/stop", {"job": "x"})
    assert (status, found["error"]) == (
        403,
        "a shared page only looks; stop it on a machine",
    )
    local = open_dashboard(homes[0], OpenDashboard())
    client = DashboardClient(local.url, key)
    assert client.ask("POST", "/stop", {"job": "x"})[0] == 403
    client.open()
    assert client.ask("POST", "/stop", {"job": "x"})[0] == 404


def wait_for_code(phone: DashboardClient, code: str) -> str:
    """Type the code, again if one was typed a second ago."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        status, found = phone.ask("POST", "/session", {"code": code})
        if status == 200:
            assert not found["can_stop"]
            return str(found["key"])
        assert status == 429, found
        assert time.monotonic() < until_s
        time.sleep(0.2)


@pytest.mark.slow  # it waits for a limit of ten seconds
def test_an_open_tls_handshake_takes_no_place_for_ever(
    homes: tuple[Path, Path],
) -> None:
    opened = open_dashboard(homes[0], OpenDashboard(is_shared=True))
    phone = DashboardClient(opened.url)
    silent = [socket.create_connection(phone.address, PATIENCE_S) for _ in range(30)]
    try:
        closed = sum(1 for sock in silent if _is_closed(sock))
        assert closed == len(silent), "those beyond the limit at once, others in time"
    finally:
        for sock in silent:
            sock.close()
    assert phone.ask("GET", "/state")[0] == 401


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
