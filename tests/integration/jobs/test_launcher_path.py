"""The launcher of a job imports nothing of the job, and says why it cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.testing.node_process import make_home
from tests.kit.machines import RINGLEADER
from tests.kit.resident_machine import LOOPBACK, resident_machine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")

LIMIT_S = 300.0
BROKEN = "raise RuntimeError('this is no library of yours')\n"
"""torch imports a module of the name ``cuda`` where there is one."""
TRAIN = """
import os, sys
import torch.distributed as dist
from tools import NAME
dist.init_process_group()
print("trained with", NAME, os.path.basename(sys.path[0]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with resident_machine(tmp_path) as made:
        yield made


def run(folder: Path, home: Path, *words: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [*RINGLEADER, "run", *words],
        cwd=folder,
        env={**os.environ, "RINGLEADER_HOME": str(home), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_job_may_have_a_cuda_py_beside_its_script(home: Path, tmp_path: Path) -> None:
    """Beside the script, and in a folder from which the project imports."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "pyproject.toml").write_text("[project]\nname = 'p'\nversion = '1'\n")
    (project / "train.py").write_text(TRAIN)
    (project / "src" / "tools.py").write_text("NAME = 'tools'\n")
    for folder in (project, project / "src"):
        (folder / "cuda.py").write_text(BROKEN)
    code, said = run(project, home, "train.py")
    assert code == 0, said
    assert "trained with tools work" in said


def test_a_torch_that_cannot_be_imported_is_named_once(tmp_path: Path) -> None:
    """The import runs in a thread, and once more in this process it might hang."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BROKEN)
    (tmp_path / "train.py").write_text("")
    home = make_home(tmp_path / "home", os.urandom(32))
    words = ("--here", "--nodes", "1", "--interface", LOOPBACK, "train.py")
    code, said = run(tmp_path, home, *words, PYTHONPATH=str(tmp_path))
    assert code == 1, said
    assert "torch cannot be imported here: RuntimeError: this is no library" in said
    assert "Traceback" not in said


PACKAGE_MODULE = """
import sys
import torch.distributed as dist
from job.words import WORD
dist.init_process_group()
print("trained with", WORD, sys.argv[1:])
"""


def test_a_module_of_src_runs_where_it_is_typed_and_in_a_job(
    home: Path, tmp_path: Path
) -> None:
    """Of an imported neighbour, too, in a package that is not installed."""
    package = tmp_path / "project" / "src" / "job"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(PACKAGE_MODULE)
    (package / "words.py").write_text("WORD = 'src'\n")
    project = tmp_path / "project"
    for words in ((), ("--here", "--nodes", "1")):
        code, said = run(project, home, *words, "-m", "job.train", "-v")
        assert code == 0, said
        assert "trained with src ['-v']" in said


BROKEN_THREAD = """
import sys, threading, time
from ringleader.cli import run_command
from ringleader.cli.main import app

def run_job(_plan, _errors):
    threading.Thread(target=lambda: int("boom"), name="ringleader-helper").start()
    time.sleep(3600)

run_command.run_job = run_job
app(sys.argv[1:])
"""


def test_a_thread_of_the_launcher_that_fails_ends_it_with_the_cause(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text("")
    home = make_home(tmp_path / "home", os.urandom(32))
    done = subprocess.run(
        [sys.executable, "-c", BROKEN_THREAD, "run", "--here", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "RINGLEADER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ringleader run: ringleader-helper failed: ValueError: inv")
