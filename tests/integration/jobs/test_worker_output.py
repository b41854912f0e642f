"""Each worker of a job writes to a pipe or a terminal of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from ringleader.cli.worker_output import with_own_output
from ringleader.jobs.machine.output_socket import OutputSocket
from ringleader.jobs.protocol.job_spec import TerminalSize

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")

LIMIT_S = 120.0
PRINT = (
    "import os, sys; sys.stderr.write('err\\n'); "
    "print(sys.stdout.isatty(), os.get_terminal_size(1).columns "
    "if sys.stdout.isatty() else 0, sys.argv[1:])"
)


async def outputs(
    path: Path, terminal: TerminalSize | None, ranks: int
) -> dict[str, bytes]:
    """What workers write, by log."""
    found: dict[str, bytes] = {}

    def on_output(log: str, data: bytes) -> None:
        found[log] = found.get(log, b"") + data

    socket = OutputSocket(path, terminal, on_output)
    socket.listen()
    try:
        async with asyncio.timeout(LIMIT_S):
            for rank in range(ranks):
                command = [sys.executable, "-c", PRINT, "ä b"]
                worker = await asyncio.create_subprocess_exec(
                    *with_own_output(command, str(path)),
                    env={**os.environ, "RANK": str(rank)},
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                said, _ = await worker.communicate()
                assert (said, worker.returncode) == (b"", 0), (
                    "not the launcher's output"
                )
            await socket.drain(LIMIT_S)
    finally:
        socket.close()
    return found


@pytest.mark.parametrize("depth", [1, 12])
def test_each_rank_has_a_log_also_below_a_long_path(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["Jobs für Züge"] * depth)
    folder.mkdir(parents=True)
    found = asyncio.run(outputs(folder / "output.sock", None, ranks=2))
    text = "err\nFalse 0 ['ä b']\n".encode()
    assert found == {"rank-0": text, "rank-1": text}
    assert list(folder.iterdir()) == []


def test_rank_0_has_a_terminal_if_the_user_has_one(tmp_path: Path) -> None:
    size = TerminalSize(columns=71, rows=20)
    found = asyncio.run(outputs(tmp_path / "output.sock", size, ranks=2))
    assert found["rank-0"] == "err\nTrue 71 ['ä b']\n".encode()
    assert found["rank-1"] == "err\nFalse 0 ['ä b']\n".encode()


def test_a_worker_without_a_supervisor_keeps_the_launchers_output(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[bytes, int | None]:
        worker = await asyncio.create_subprocess_exec(
            *with_own_output(
                [sys.executable, "-c", "print('here')"], str(tmp_path / "gone")
            ),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(LIMIT_S):
            said, _ = await worker.communicate()
        return said, worker.returncode

    said, code = asyncio.run(run())
    assert code == 0
    assert said.startswith(b"ringleader: this rank has no log of its own (")
    assert said.endswith(b"here\n")
