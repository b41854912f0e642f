"""The agent process starts, refuses invalid requests, and ends with its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    GroupAborted,
    ProtocolError,
)
from ringleader.ids import Incarnation, NodeId
from ringleader.node.agent.event_log import EventLog
from ringleader.node.launch import agent_process
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol import framing, local_requests
from ringleader.node.protocol.agent_client import AgentClient, agent_sockets
from ringleader.node.protocol.agent_config import AgentConfig, run_directory
from ringleader.node.protocol.hello import PROTOCOL, AgentHello, decode_hello
from ringleader.node.protocol.local_requests import (
    CheckRound,
    EnterJob,
    GetSnapshot,
    LeaveJob,
    Progress,
    RequestDone,
    RoundEntered,
    RoundStatus,
)
from ringleader.node.protocol.node_state import JobFingerprint
from ringleader.node.protocol.snapshot import NodeRow, Snapshot
from ringleader.testing.node_process import make_home

LIMIT_S = 120.0
"""Of all that takes a moment: a busy machine needs seconds."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    home = make_home(tmp_path / "home", os.urandom(32))
    return AgentConfig(home=str(home), interfaces=[LOOPBACK], profile="loopback")


def enter(
    nodes: int, job: str = "job", timeout_s: float = 2 * LIMIT_S, torch: str = ""
) -> EnterJob:
    return EnterJob(
        job=job,
        min_nodes=nodes,
        max_nodes=nodes,
        wait_s=0,
        timeout_s=timeout_s,
        fingerprint=JobFingerprint(torch=torch),
    )


def has_ended(pid: int, within_s: float = LIMIT_S) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie":
            return True
        time.sleep(0.05)
    return False


IMPATIENT = """
import ringleader.node.agent.process as agent
agent.CONFIG_S = 0.1
print(flush=True)
agent.main()
"""


def test_an_agent_waits_for_its_settings_as_long_as_its_parent_lives(
    config: AgentConfig,
) -> None:
    """The parent of a busy machine may need a minute to send them."""
    for has_settings in (True, False):
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-c", IMPATIENT, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        with AgentClient(ours) as agent:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.5)
            if has_settings:
                deadline = Deadline.after(LIMIT_S)
                agent.send(config, deadline)
                assert agent.receive(deadline) == RequestDone()
        _, said = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, said) == (0 if has_settings else 1, b"")


def test_a_slow_start_of_an_agent_is_explained(
    config: AgentConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep 1; exec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(agent_process, "SLOW_S", 0.1)
    monkeypatch.setattr(sys, "executable", str(slow))
    with AgentProcess.start(config) as agent:
        assert agent.is_alive
    assert "is still starting" in caplog.text


def test_a_lone_agent_forms_a_round_of_one_and_describes_itself(
    config: AgentConfig,
) -> None:
    with AgentProcess.start(config) as agent:
        entered = agent.ask(enter(1), Deadline.after(LIMIT_S))
        assert isinstance(entered, RoundEntered)
        assert (entered.rank, entered.size, entered.store_port) == (0, 1, 0)
        assert Path(entered.credentials).stat().st_mode & 0o777 == 0o600
        seen = agent.ask(GetSnapshot(), Deadline.after(LIMIT_S))
        assert isinstance(seen, Snapshot)
        assert seen.leader == seen.node
        assert agent.ask(CheckRound("job"), Deadline.after(LIMIT_S)) == RoundStatus(
            False
        )
        pid = agent.pid
    assert has_ended(pid)
    assert agent_sockets(Path(config.home)) == []
    assert not Path(entered.credentials).exists()


def test_two_nodes_of_one_user_on_one_host_train_together(config: AgentConfig) -> None:
    """Two nodes discover each other on loopback and form a ring. A machine that is
    behind when the others have finished is told so at once, instead of waiting for
    them; one with another torch is refused with both versions."""
    with AgentProcess.start(config) as one, AgentProcess.start(config) as two:
        first = framing.pack(enter(2))
        two._sock.sendall(first)
        entered = one.ask(enter(2), Deadline.after(LIMIT_S))
        assert isinstance(entered, RoundEntered)
        other = two.receive(Deadline.after(LIMIT_S))
        while not isinstance(other, RoundEntered):
            other = two.receive(Deadline.after(LIMIT_S))
        assert {entered.rank, other.rank} == {0, 1}
        assert entered.round == other.round
        assert len(agent_sockets(Path(config.home))) == 2
        one.ask(LeaveJob("job", ok=True), Deadline.after(LIMIT_S))
        with pytest.raises(GroupAborted, match="have finished it, this one has not"):
            two.ask(enter(2, timeout_s=600), Deadline.after(LIMIT_S))
        two._sock.sendall(framing.pack(enter(2, "another", torch="2.13.0+cpu")))
        assert isinstance(two.receive(Deadline.after(LIMIT_S)), Progress)
        versions = "torch is 2.15.0 here and 2.13.0.cpu there"
        with pytest.raises(ConfigError, match=versions):
            one.ask(enter(2, "another", torch="2.15.0"), Deadline.after(LIMIT_S))
        two.close()
        deadline = Deadline.after(LIMIT_S)
        while len(rows(one)) > 1:
            assert not deadline.is_over(), "who says goodbye is not mourned as dead"
            time.sleep(0.02)


def rows(agent: AgentProcess) -> list[NodeRow]:
    seen = agent.ask(GetSnapshot(), Deadline.after(LIMIT_S))
    assert isinstance(seen, Snapshot)
    return seen.nodes


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"profile": "nope"}, "profile 'nope'"),
        ({"interfaces": ["nope0"]}, "nope0"),
        ({"peers": "nope:x"}, "nope"),
        ({"home": "/nowhere/at/all"}, "ringleader init"),
    ],
    ids=["profile", "interface", "peers", "home"],
)
def test_an_agent_that_cannot_start_says_why_in_one_line(
    config: AgentConfig,
    change: dict[str, object],
    word: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fields = {**msgspec.structs.asdict(config), **change}
    with pytest.raises(ConfigError, match=word):
        AgentProcess.start(AgentConfig(**fields))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "bad",
    [
        enter(1, job="a/b"),
        enter(1, job="x" * 65),
        enter(1, job="\x1b[2J"),
        enter(65),
        enter(1, timeout_s=float("inf")),
    ],
)
def test_an_invalid_job_request_is_refused_at_once(bad: EnterJob) -> None:
    with pytest.raises(ConfigError, match="job"):
        local_requests.validate(bad)


def test_a_second_request_ends_the_wait_for_a_round(config: AgentConfig) -> None:
    with AgentProcess.start(config) as agent:
        agent._sock.sendall(framing.pack(enter(2, timeout_s=10 * LIMIT_S)))
        assert isinstance(agent.receive(Deadline.after(LIMIT_S)), Progress)
        assert agent.ask(LeaveJob("job"), Deadline.after(LIMIT_S)) == RequestDone()


def test_a_late_reply_closes_the_connection_to_the_agent(
    config: AgentConfig,
) -> None:
    with AgentProcess.start(config) as agent:
        os.kill(agent.pid, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineExceeded):
                agent.ask(CheckRound("job"), Deadline.after(0.3))
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        assert agent._sock.fileno() == -1, "a late reply would answer the next request"


PARENT = """
import os, sys, time
from ringleader.deadline import Deadline
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol.agent_config import CONFIG
import ringleader.node.protocol.framing as framing
from ringleader.node.protocol.local_requests import EnterJob
agent = AgentProcess.start(CONFIG.decode(bytes.fromhex(sys.argv[1])))
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(3600)
    os._exit(0)
print(agent.pid, flush=True)
waits = EnterJob(job="job", min_nodes=2, max_nodes=2, wait_s=0, timeout_s=3600)
if sys.argv[2] == "wait":
    agent.ask(waits, Deadline.after(3600))
time.sleep(3600)
"""


@pytest.fixture
def parent(
    config: AgentConfig, tmp_path: Path
) -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.wait(LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("how", ["idle", "wait", "fork"])
def test_the_agent_ends_with_its_parent_however_that_ends(
    config: AgentConfig, parent: list[subprocess.Popen[str]], tmp_path: Path, how: str
) -> None:
    # A module of the user that shadows the standard library must not be imported.
    (tmp_path / "secrets.py").write_text("raise SystemExit('the wrong one')")
    script = tmp_path / "folder" / "parent.py"
    script.parent.mkdir()
    script.write_text(PARENT)
    argv = [sys.executable, str(script), msgspec.msgpack.encode(config).hex(), how]
    parent.append(
        subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    )
    assert parent[0].stdout is not None
    agent = int(parent[0].stdout.readline())
    children = psutil.Process(parent[0].pid).children()
    time.sleep(0.5)
    parent[0].kill()
    try:
        assert has_ended(agent), "the agent has outlived its parent"
    finally:
        for child in children:
            if child.is_running() and child.pid != agent:
                child.kill()


def test_the_next_agent_removes_the_files_of_a_killed_one(config: AgentConfig) -> None:
    with AgentProcess.start(config) as agent:
        os.kill(agent.pid, signal.SIGKILL)
        agent._process.wait(LIMIT_S)
    folder = run_directory(Path(config.home))
    assert list(folder.glob("*.credentials")), "kill -9 leaves it: nothing can be done"
    with AgentProcess.start(config) as agent:
        left = {path.stem.partition("-")[0] for path in folder.iterdir()}
        assert left == {str(agent.pid)}


def test_a_closed_terminal_does_not_stop_the_event_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closed:
        def write(self, _text: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    EventLog({}, prints=True).connected(NodeId("b" * 52), "desk", "10.0.0.1")


HELLO = AgentHello(
    protocol=PROTOCOL,
    version="1",
    purpose="control",
    node=NodeId("b" * 52),
    incarnation=Incarnation("0" * 16),
    started_ms=0,
    name="desk",
    port=4000,
    clock_s=0.0,
)


@pytest.mark.parametrize(
    "change",
    [
        {"incarnation": "evil"},
        {"node": "x"},
        {"started_ms": 1 << 63},
        {"port": 70000},
        {"clock_s": float("nan")},
        {"name": "\x1b[2J"},
        {"version": "x" * 257},
    ],
    ids=str,
)
def test_an_invalid_hello_is_refused(
    change: dict[str, object],
) -> None:
    data = msgspec.msgpack.encode(msgspec.structs.replace(HELLO, **change))
    with pytest.raises(ProtocolError):
        decode_hello(data, "peer")
