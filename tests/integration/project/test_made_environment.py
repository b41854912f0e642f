"""``--sync-env``: environments are made from a project's list, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest

from ringleader.deadline import Cancellation, Deadline
from ringleader.errors import ConfigError
from ringleader.project import (
    EnvironmentNeeds,
    compare_environment,
    facts_of,
    local_facts,
    make_environment,
)
from ringleader.project.command import Command
from ringleader.project.environment import NeededDistribution
from ringleader.project.made_environment import (
    KEPT,
    KEPT_S,
    MadeEnvironment,
    delete_unused,
)
from tests.kit.wheels import make_wheel

LIMIT_S = 300.0


def needs() -> EnvironmentNeeds:
    here = local_facts(EnvironmentNeeds("", "", ()))
    wanted = (
        NeededDistribution("rl_wheel", "1.4.0", ("rl_wheel",)),
        NeededDistribution("torch", metadata.version("torch"), ("torch",)),
    )
    return EnvironmentNeeds(here.python, here.ringleader, wanted)


def project_with(folder: Path, *lines: str) -> Path:
    make_wheel(folder / "wheels", "rl_wheel", "1.4.0", value=14)
    text = "\n".join(["--no-index", "--find-links ./wheels", *lines, ""])
    (folder / "requirements.txt").write_text(text)
    return folder


def value(python: Path) -> str:
    code = "import rl_wheel, ringleader.cli.main; print(rl_wheel.VALUE)"
    said = subprocess.run(
        [python, "-P", "-c", code], capture_output=True, text=True, timeout=LIMIT_S
    )
    return said.stdout or said.stderr


def make(project: Path, home: Path) -> Path:
    return make_environment(project, "train.py", home, Deadline.after(LIMIT_S))


@pytest.mark.slow
def test_an_environment_is_made_once_and_has_the_agents_packages(
    tmp_path: Path,
) -> None:
    project = project_with(tmp_path / "a job", "rl_wheel==1.4.0")
    assert [row.what for row in compare_environment(needs(), local_facts(needs()))] == [
        "rl_wheel"
    ]
    python = make(project, tmp_path / "home")
    facts = facts_of(python, needs(), Deadline.after(LIMIT_S))
    assert compare_environment(needs(), facts) == []
    assert value(python) == "14\n"
    os.utime(python.parents[1] / "complete", (0, 0))  # the next job finds it
    assert make(project, tmp_path / "home") == python
    assert (python.parents[1] / "complete").stat().st_mtime > 0

    other = project_with(tmp_path / "another job", "rl_wheel==1.4.0")
    make_wheel(other / "wheels", "rl_wheel", "1.4.0", value=15)
    theirs = make(other, tmp_path / "home")
    assert value(theirs) == "15\n", "the list is the same, the package is not"
    shutil.rmtree(theirs.parents[1])

    project_with(tmp_path / "a job", "rl_wheel==1.5.0")
    with pytest.raises(ConfigError, match=r"requirements.txt: \w+ failed") as caught:
        make(project, tmp_path / "home")
    assert "rl_wheel==1.5.0" in str(caught.value)
    folders = [
        each for each in (tmp_path / "home/environments").iterdir() if each.is_dir()
    ]
    assert folders == [python.parents[1]], "nothing is left of the one that failed"


def test_environments_that_nobody_uses_are_deleted(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        mark = tmp_path / f"e{number}" / "complete"
        mark.parent.mkdir()
        mark.touch()
        used_s = time.time() - number * KEPT_S / (KEPT + 0.5)
        os.utime(mark, (used_s, used_s))
    for name in ("half", "being made"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "half", (0, 0))
    running = f"e{KEPT + 2}"
    delete_unused(tmp_path, [MadeEnvironment(tmp_path / running).python])
    left = {path.name for path in tmp_path.iterdir()}
    names = {f"e{number}" for number in range(KEPT + 1)}
    assert left == {"being made", running, *names}


def test_a_command_that_is_stopped_ends_with_its_children(tmp_path: Path) -> None:
    pipe, stop = tmp_path / "pipe", Cancellation()
    os.mkfifo(pipe)
    ended: list[bytes] = []

    def stop_when_it_runs() -> None:
        with open(pipe, "rb") as file:  # waits until the child has opened it, too
            stop.cancel("the job was stopped")
            ended.append(file.read())  # until the child is gone

    waiting = threading.Thread(target=stop_when_it_runs)
    waiting.start()
    shell = f"(exec 9>'{pipe}'; sleep 1000) & wait"
    command = Command(argv=["sh", "-c", shell], purpose="the test")
    with pytest.raises(ConfigError, match="the test: sh: the job was stopped"):
        command.run(Deadline.after(LIMIT_S, stop))
    waiting.join(LIMIT_S)
    assert ended == [b""]
    with pytest.raises(ConfigError, match=r"the test: sh: took more than 0\.1 s"):
        command.run(Deadline.after(0.1))


def test_the_last_words_of_a_command_are_told() -> None:
    code = "import sys; print('x' * 9); sys.stderr.write('why\\x1b[2J'); sys.exit(3)"
    command = Command(argv=[sys.executable, "-c", code], purpose="the test")
    with pytest.raises(ConfigError, match=r"failed with status 3:\nx{9}\nwhy \[2J$"):
        command.run(Deadline.after(LIMIT_S))
    with pytest.raises(ConfigError, match="does not start: No such file"):
        Command(argv=["/nowhere/pip"], purpose="it").run(Deadline.after(LIMIT_S))
    cat = Command(argv=["cat"], purpose="it", stdin=b"given")
    assert cat.run(Deadline.after(LIMIT_S)) == b"given"


def test_a_source_that_only_uv_knows_is_not_looked_for_in_the_public_index(
    tmp_path: Path,
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "pyproject.toml").write_text(
        "[project]\nname = 'x'\nversion = '1'\ndependencies = ['My_pkg>=1', 'numpy']\n"
        "[tool.uv.sources]\nmy-pkg = [{path = './pkg'}]\nnumpy = {index = 'mirror'}\n"
    )
    with pytest.raises(ConfigError, match=r"toml: My_pkg>=1 come from .*type: uv lock"):
        make(tmp_path / "job", tmp_path / "home")
    assert not list((tmp_path / "home/environments").glob("*/"))
