"""Workers of the fork server: as if Python had just started them.

The launcher of these tests imports no torch, so that a test costs little.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ringleader.node.launch import fork_server
from ringleader.node.launch.fork_server import can_fork
from ringleader.node.launch.forked_worker import receive
from ringleader.simulation.lan import can_make_lan, lan
from ringleader.testing.node_process import make_home
from tests.kit.warm_python import WarmPython

pytestmark = pytest.mark.skipif(not can_fork(), reason="needs Linux")

LAUNCHER = """
import os, signal, subprocess, sys
from ringleader.node.launch import worker_main
from ringleader.node.launch.fork_server import ForkServer

with ForkServer.start(preloaded=["fractions", "absent_module"]) as server:
    command = server.command([sys.executable, "-u", worker_main.__file__])
    print(" ".join(command), flush=True)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    sys.stdin.read()
"""

PROGRAM = """
import json, os, random, signal, sys, time

def stop(number, frame):
    print("stopped", flush=True)
    sys.exit(3)

match sys.argv[1]:
    case "facts":
        facts = {
            "argv": sys.argv,
            "main": [__name__, __file__, sys.modules["__main__"].PLACE, __spec__],
            "path": sys.path[:2],
            "directory": os.getcwd(),
            "variable": os.environ.get("GIVEN"),
            "launcher": os.environ.get("ONLY_LAUNCHER"),
            "preloaded": "fractions" in sys.modules,
            "random": random.random(),
            "leads": os.getpid() == os.getpgid(0),
            "input": sys.stdin.read(),
        }
        print(json.dumps(facts))
        kept = open(sys.argv[2], "w")  # closed by the end of the interpreter only
        kept.write("flushed")
        sys.exit(7)
    case "fail":
        raise ValueError("on purpose")
    case "signal":
        os.kill(os.getpid(), signal.SIGUSR1)
    case "child":
        import subprocess
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, flush=True)
        time.sleep(3600)
    case "wait":
        signal.signal(signal.SIGTERM, stop)
        print(os.getpid(), flush=True)
        time.sleep(3600)
"""
PROGRAM = PROGRAM.replace("match", "PLACE = 'here'\nmatch", 1)


class Launcher:
    """A process with a fork server, and a program for its workers."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "train.py"
        self.script.write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ONLY_LAUNCHER": "1"},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.command = self.process.stdout.readline().split()

    def worker(self, *args: str, **options: Any) -> subprocess.Popen[str]:  # noqa: ANN401
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        argv = [*self.command, str(self.script), *args]
        return subprocess.Popen(
            argv, text=True, start_new_session=True, **{**pipes, **options}
        )

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def launcher(tmp_path: Path) -> Any:  # noqa: ANN401
    made = Launcher(tmp_path)
    yield made
    made.close()


def test_a_forked_worker_is_like_one_that_python_started(
    launcher: Launcher, tmp_path: Path
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ONLY_LAUNCHER"}
    given = {"GIVEN": "ä=1", "PYTHONPATH": str(tmp_path / "src")}
    options = {"cwd": tmp_path, "env": {**env, **given}}
    kept = tmp_path / "kept"
    workers = [launcher.worker("facts", str(kept), **options) for _ in range(2)]
    facts = [json.loads(each.communicate("hello", 300)[0]) for each in workers]
    assert [each.returncode for each in workers] == [7, 7]
    assert kept.read_text() == "flushed"
    drawn = [each.pop("random") for each in facts]
    assert drawn[0] != drawn[1]
    assert (
        facts[0]
        == facts[1]
        == {
            "argv": [str(launcher.script), "facts", str(kept)],
            "main": ["__main__", str(launcher.script), "here", None],
            "path": [str(tmp_path), str(tmp_path / "src")],
            "directory": str(tmp_path),
            "variable": "ä=1",
            "launcher": None,
            "preloaded": True,
            "leads": True,
            "input": "hello",
        }
    )


def test_a_forked_worker_ends_as_its_program_ends(launcher: Launcher) -> None:
    failing, signalled = launcher.worker("fail"), launcher.worker("signal")
    said = failing.communicate(timeout=300)[1]
    assert failing.returncode == 1
    assert said.splitlines()[0] == "Traceback (most recent call last):"
    assert "ValueError: on purpose" in said
    assert "fork_server" not in said, "only the frames of the program"
    signalled.communicate(timeout=300)
    assert signalled.returncode == -signal.SIGUSR1


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait_until_gone(pid: int) -> None:
    until_s = time.monotonic() + 120
    while not _is_gone(pid):
        assert time.monotonic() < until_s, f"process {pid} is alive"
        time.sleep(0.02)


def test_signals_reach_a_forked_worker_and_it_dies_with_those_above(
    launcher: Launcher,
) -> None:
    asked, orphan, last = (launcher.worker("wait") for _ in range(3))
    pids = []
    for each in (asked, orphan, last):
        assert each.stdout is not None
        pids.append(int(each.stdout.readline()))
    os.killpg(asked.pid, signal.SIGTERM)
    assert asked.communicate(timeout=300)[0] == "stopped\n"
    assert asked.returncode == 3
    orphan.kill()
    orphan.communicate(timeout=300)
    _wait_until_gone(pids[1])
    assert not _is_gone(pids[2])
    launcher.process.kill()
    _wait_until_gone(pids[2])
    assert (
        "the fork server ended before this worker" in last.communicate(timeout=300)[1]
    )
    late = launcher.worker("signal")  # there is no server any more
    assert "this worker imports torch itself" in late.communicate(timeout=300)[1]
    assert late.returncode == -signal.SIGUSR1


def _first_line(worker: subprocess.Popen[str]) -> int:
    assert worker.stdout is not None
    return int(worker.stdout.readline())


def test_signals_to_the_group_of_the_launcher_leave_the_server_alone(
    launcher: Launcher,
) -> None:
    """Was: the server ended, and the kernel killed its workers at once."""
    worker = launcher.worker("wait")
    pid = _first_line(worker)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.killpg(launcher.process.pid, number)
    later = launcher.worker("fail")  # the server lives and has had the signals
    later.communicate(timeout=300)
    assert later.returncode == 1
    assert not _is_gone(pid)
    worker.send_signal(signal.SIGTERM)
    assert worker.communicate(timeout=300)[0] == "stopped\n"


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_children_of_workers_end_with_the_launcher(
    launcher: Launcher, how: str
) -> None:
    """Was: the kernel killed the worker, and its children lived on."""
    worker = launcher.worker("child")
    child = _first_line(worker)
    if how == "killed":
        launcher.process.kill()
    else:
        launcher.process.communicate(timeout=300)
        assert launcher.process.returncode == 0
    _wait_until_gone(child)
    worker.communicate(timeout=300)


def test_a_worker_may_end_in_the_moment_of_a_signal() -> None:
    """Was: ProcessLookupError ended the server."""
    ours, theirs = socket.socketpair()
    lifeline, other = socket.socketpair()
    ended = subprocess.Popen(["true"])
    server = fork_server._Server(socket.socket(socket.AF_UNIX), lifeline)
    worker = fork_server._Worker(ended.pid, os.pidfd_open(ended.pid), theirs)
    for source in (worker.pidfd, theirs):
        server._selector.register(source, selectors.EVENT_READ, worker)
    server._workers[ended.pid] = worker
    ours.send(bytes([signal.SIGTERM]))
    server._reap(worker)
    server._forward(worker)
    fork_server._signal(ended.pid, signal.SIGTERM)
    server._selector.close()
    for each in (ours, lifeline, other, server._listening):
        each.close()
    ended.returncode = 0


def test_descriptors_of_a_broken_request_are_closed() -> None:
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [(4).to_bytes(4, "little")], [0, 1, 2])
    ours.send(b"oops")
    before = len(os.listdir("/proc/self/fd"))
    with theirs, ours, pytest.raises(ValueError, match="Expecting value"):
        receive(theirs)
    assert len(os.listdir("/proc/self/fd")) == before - 2


STRANGER = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind("\\0" + sys.argv[1])
listening.listen()
print(flush=True)
said, _, _, _ = socket.recv_fds(listening.accept()[0], 4096, 3)
print(said)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user's processes")
def test_a_server_of_another_user_gets_nothing() -> None:
    """It has taken the name of one that has ended."""
    name = f"ringleader-fork-test-{os.getpid()}"
    stranger = subprocess.Popen(
        ["/usr/bin/env", "python3", "-c", STRANGER, name],
        stdout=subprocess.PIPE,
        text=True,
        user=65534,
        cwd="/",
    )
    assert stranger.stdout is not None
    if stranger.stdout.readline() != "\n":
        stranger.communicate(timeout=300)
        pytest.skip("another user may run no Python here")
    command = fork_server.fork_command(name, ["/bin/echo", "by itself"])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )
    assert "of user 65534 has taken its name" in done.stderr
    assert (done.returncode, done.stdout) == (0, "by itself\n")
    assert stranger.communicate(timeout=300)[0] == "b''\n"


def test_a_kernel_without_pidfd_cannot_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert not can_fork()


TRAINING = """
import sys
was_there = "torch._dynamo" in sys.modules
import torch, torch.distributed as dist
dist.init_process_group("ringleader")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
print("preloaded", was_there, __spec__ is None, flush=True)
dist.destroy_process_group()
"""

COUNT_QUESTIONS = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
print("ready", flush=True)
while True:
    print(server.recv(4096), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_run_starts_workers_without_asking_name_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython
) -> None:
    """Was: 10 s for each of three look-ups where no name server answers."""
    home = make_home(tmp_path / "home", os.urandom(32))
    (tmp_path / "train.py").write_text(TRAINING)
    sets = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"
    (tmp_path / "fresh.py").write_text(sets + TRAINING)
    with lan(hosts=1) as net:
        host = net.hosts[0]
        host.set_name_server(host.address)
        counter = host.popen(
            [sys.executable, "-c", COUNT_QUESTIONS, host.address],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert counter.stdout is not None
        assert counter.stdout.readline() == "ready\n"
        run = ["-m", "ringleader.cli.main", "run", "--nodes", "1"]
        env = {**os.environ, "RINGLEADER_HOME": str(home)}
        monkeypatch.chdir(tmp_path)
        said = [
            warm_python.popen(*run, *program, env=env, namespace=host.name)
            .communicate(timeout=500)[0]
            .splitlines()
            for program in (["-m", "train"], ["fresh.py"])
        ]
        counter.kill()
        questions = counter.communicate()[0]
    told = [[line for line in each if line.startswith("preloaded")] for each in said]
    assert told == [["preloaded True False"], ["preloaded False True"]], said
    assert questions == ""
