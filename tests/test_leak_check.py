"""The leak check catches each kind of leak, with a sentence that names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LEAKY = """
import os, socket, subprocess, sys, threading, time, uuid

KEPT = []

def test_thread():
    forever = threading.Event()
    KEPT.append(forever)
    threading.Thread(target=forever.wait, name="ringleader-x", daemon=True).start()

def test_descriptor():
    KEPT.append(socket.socket())

def test_child():
    KEPT.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1))

def test_shared():
    open(os.environ["LEFT_BEHIND"], "w").close()

def test_clean():
    sys.modules["conftest"].PATIENCE_S = 60.0  # only leaks are judged in haste
    socket.socket().close()
    thread = threading.Thread(target=time.sleep, args=(0.1,))
    thread.start()
    loop = [socket.socketpair()]
    loop.append(loop)
    loop[0][0].close()
    loop[0][1].close()
"""


def test_every_kind_of_leak_is_reported(tmp_path: Path) -> None:
    conftest = Path(__file__).parent / "conftest.py"
    hasty = re.sub(r"(?m)^PATIENCE_S = .*", "PATIENCE_S = 0.3", conftest.read_text())
    (tmp_path / "conftest.py").write_text(hasty)
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    left = Path(f"/dev/shm/ringleader-leak-{os.getpid()}")
    options = ["-p", "no:cacheprovider", "-q", "-rEfp", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    env = {**os.environ, "LEFT_BEHIND": str(left), "COLUMNS": "500"}
    env.pop("PYTEST_XDIST_WORKER", None)  # it runs alone, and checks shared memory too
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=400
        )
    finally:
        left.unlink(missing_ok=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
    found = {line.split("::")[1].split(" ")[0]: line for line in lines}
    assert found.keys() == {
        "test_thread",
        "test_descriptor",
        "test_child",
        "test_shared",
    }
    assert "thread 'ringleader-x' still runs" in found["test_thread"]
    assert "socket:" in found["test_descriptor"]
    assert "child process" in found["test_child"]
    assert str(left) in found["test_shared"]
