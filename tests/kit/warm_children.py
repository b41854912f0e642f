"""Runs a program whose own Python programs are forks, too: torchrun's, or a shell's.

As ``python -m tests.kit.warm_children -m MODULE ARGS`` in a warm interpreter, or with
the words of any other command. What that starts by the names ``python`` and
``ringleader``, by ``sys.executable`` or as torchrun's workers, is a fork of this
process, by the fork server of ``ringleader run``.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ringleader.node.launch import worker_main
from ringleader.node.launch.fork_server import ForkServer

PYTHON = """#!/bin/sh
case "$1" in
-u) shift ;;
-m | [!-]*) ;;
*) exec {python} "$@" ;;
esac
exec {fork} "$@"
"""
RINGLEADER = """#!/bin/sh
exec {fork} -m ringleader.cli.main "$@"
"""


def main(*program: str) -> int:
    """Run ``program`` and return its exit status."""
    real, folder = sys.executable, tempfile.mkdtemp()
    os.environ["PATH"] = os.pathsep.join([folder, os.environ["PATH"]])
    os.environ["PYTHON_EXEC"] = sys.executable = f"{folder}/python"
    with ForkServer.start(()) as server:  # a fork does not come back from here
        fork = shlex.join(server.command([real, "-u", worker_main.__file__]))
        for name, text in (("python", PYTHON), ("ringleader", RINGLEADER)):
            shim = Path(folder, name)
            shim.write_text(text.format(python=real, fork=fork))
            shim.chmod(0o755)
        try:
            return run(*program)
        finally:
            shutil.rmtree(folder)


def run(*program: str) -> int:
    """Run it here if it is a module."""
    if program[0] != "-m":
        return subprocess.run(program, check=False).returncode
    sys.argv = list(program[1:])
    sys.modules.pop(program[1], None)  # else a warning that it was imported before
    try:
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else bool(exc.code)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
