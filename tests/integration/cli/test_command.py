"""The ``ringleader`` command as a process."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ringleader
from ringleader.cli.main import SUMMARIES, app, load_command
from tests.kit.machines import RINGLEADER
from tests.kit.warm_python import WarmPython

SLOW = {
    "torch",
    "numpy",
    "zeroconf",
    "asyncio",
    "psutil",
    "pydantic",
    "importlib.metadata",
}
"""Modules that help, ``status`` and a bare ``ringleader`` have no use for; some take
seconds."""
SLOW_FOR_HELP = SLOW | {"cryptography", "markdown_it", "msgspec"}

LIST_MODULES = """
import atexit, sys
atexit.register(lambda: print("MODULES", *sys.modules))
from ringleader.cli.main import app
sys.argv[0] = "ringleader"
app()
"""

WITHOUT_EXTRAS = """
import sys

class Missing:
    # Refuses the packages of the extras, as if they were not installed.
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("httpx2", "backports", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from typer.testing import CliRunner
from ringleader.cli.main import app
import subprocess
def start(*_arguments, **_options):
    raise AssertionError("a process was started")
subprocess.Popen.__init__ = start
for argv in (
    ["work", "http://127.0.0.1:1/#code"],
    ["serve", "digits", "--workers", "1", "--rounds", "1"],
    ["bench", "--quick", "--out", "results"],
):
    done = CliRunner().invoke(app, argv)
    print(done.exit_code, " ".join(done.output.split()), done.exception)
"""


def python(code: str, *argv: str) -> str:
    words = [sys.executable, "-c", code, *argv]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False
    )
    return done.stdout + done.stderr


HELP_MODULES = """
import os, sys
from ringleader.cli.main import SUMMARIES, app
for argv in [[], *([name] for name in SUMMARIES)]:
    child = os.fork()  # imports of one command are not those of the next
    if not child:
        sys.argv = ["ringleader", *argv, "--help"]
        sys.stdout = open(os.devnull, "w")
        try:
            app()
        finally:
            print(*argv, *sys.modules, file=sys.__stdout__, flush=True)
            os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a child per command")
def test_no_help_imports_anything_slow() -> None:
    """The help of every command there is shall take less than 0.3 s of a core."""
    lines = [line.split() for line in python(HELP_MODULES).splitlines()]
    assert len(lines) == 1 + len(SUMMARIES)
    for name, (first, *rest) in zip(SUMMARIES, lines[1:], strict=True):
        assert first == name
        assert f"ringleader.cli.{name}" in rest, "the help is that of the command"
        assert not SLOW_FOR_HELP & set(rest), name
    assert not SLOW_FOR_HELP & set(lines[0])


@pytest.mark.parametrize("argv", [["status"], []])
def test_a_quick_command_imports_nothing_slow(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGLEADER_HOME", str(tmp_path))
    imported = set(python(LIST_MODULES, *argv).partition("MODULES")[2].split())
    assert "ringleader.cli.main" in imported
    assert not SLOW & imported


def test_the_summaries_are_those_of_the_commands() -> None:
    for name, summary in SUMMARIES.items():
        text = inspect.getdoc(load_command(name).callback) or ""
        assert " ".join(text.split("\n\n")[0].split()) == summary


def test_the_version_is_printed() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (
        0,
        f"ringleader {ringleader.__version__}\n",
    )


def test_a_missing_extra_is_one_sentence_before_a_process_starts() -> None:
    """Was: a traceback of ModuleNotFoundError, or of every worker."""
    work, serve, bench = python(WITHOUT_EXTRAS).splitlines()
    for line in (work, serve):
        assert "httpx2, backports.zstd are not installed; run: pip install" in line
        assert "'ringleader[internet]'" in line
    assert "matplotlib is not installed; run: pip install 'ringleader[bench]'" in bench
    assert all(line[0] in "12" for line in (work, serve, bench))


COMPLETE = """
eval "$1"
COMP_WORDS=(ringleader "${@:2}") COMP_CWORD=$(($# - 1))
_ringleader
echo "${COMPREPLY[*]}"
"""


def test_bash_completes_commands_options_and_files(tmp_path: Path) -> None:
    script = CliRunner().invoke(app, ["completion", "bash"]).output
    (tmp_path / "train.py").touch()

    def complete(*words: str) -> str:
        argv = ["bash", "-c", COMPLETE, "bash", script, *words]
        return subprocess.run(
            argv, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=True
        ).stdout.strip()

    assert complete("sta") == "status"
    assert complete("run", "--nod") == "--nodes"
    assert complete("run", "tr") == "train.py"
    assert complete("completion", "z") == "zsh"


def test_the_other_shells_get_every_command_and_option() -> None:
    """Their shells are seldom installed where the tests run."""
    zsh = CliRunner().invoke(app, ["completion", "zsh"]).output
    fish = CliRunner().invoke(app, ["completion", "fish"]).output
    for name in SUMMARIES:
        assert f"'{name}:" in zsh
        assert f"-a {name} " in fish
    assert "'--nproc-per-node:" in zsh
    assert "-l nproc-per-node" in fish


@pytest.mark.parametrize(
    ("word", "instead"),
    [("start", "ringleader up"), ("train.py", "run train.py"), ("runn", "'run'")],
)
def test_a_word_that_is_no_command_says_what_is_meant(word: str, instead: str) -> None:
    done = CliRunner().invoke(app, [word])
    assert done.exit_code == 2
    assert f"No such command '{word}'." in done.output
    assert instead in done.output


def test_what_cannot_run_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython
) -> None:
    """Also on a machine that is in no cluster: the word is wrong on every machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "book.ipynb"):
        (tmp_path / name).touch()
    typed = {
        "run python train.py --lr 1": "; ringleader run train.py --lr 1\n",
        "run -": "; save it: ringleader run train.py\n",
        "run .": "is a folder; name the script: ringleader run train.py\n",
        "run book.ipynb": "--to script book.ipynb; ringleader run book.py\n",
        "start": "'ringleader run SCRIPT' trains",
    }
    env = {**os.environ, "RINGLEADER_HOME": str(tmp_path / "home")}
    argvs = [[*RINGLEADER[1:], *words.split()] for words in typed]
    commands = [warm_python.popen(*argv, env=env) for argv in argvs]
    for command, instead in zip(commands, typed.values(), strict=True):
        said, _ = command.communicate(300)
        assert command.returncode in (1, 2), said
        assert instead in said
