"""Output of a job on its way to a client that does not read."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from ringleader.errors import PeerRefused
from ringleader.ids import NodeId
from ringleader.jobs.machine.job_folder import JobFolder
from ringleader.jobs.machine.output_stream import send_output
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.jobs.protocol.messages import Follow
from ringleader.node.agent.service_stream import ServiceStream

LIMIT_S = 120.0


def _wait_until_full(writer: asyncio.StreamWriter) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not writer.transport.get_write_buffer_size():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_refusal_ends_a_stream_that_nobody_reads(tmp_path: Path) -> None:
    """The sender is held up by the full connection, and looks at the permission."""
    machine = JobMachine(NodeId("a" * 52), "attic")
    spec = JobSpec(id="job", script="train.py", machines=[machine])
    folder = JobFolder(tmp_path / "job")
    folder.make()
    state = JobState.FAILED
    folder.write(JobRecord(spec=spec, machine="attic", state=state, created_s=0))
    (folder.logs / "rank-0.log").write_bytes(bytes(32 << 20))
    is_allowed = True

    def may_read() -> bool:
        if not is_allowed:
            raise PeerRefused("attic", "runs no jobs of other machines")
        return True

    async def follow() -> None:
        nonlocal is_allowed
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        stream = ServiceStream(machine.node, "attic", "", reader, writer)
        try:
            sending = asyncio.create_task(
                send_output(stream, Follow(job="job"), folder, may_read)
            )
            await asyncio.to_thread(_wait_until_full, writer)
            is_allowed = False
            with pytest.raises(PeerRefused):
                await asyncio.wait_for(sending, LIMIT_S)
        finally:
            stream.abort()
            theirs.close()

    asyncio.run(follow())
