"""``send_output``: sends the logs of a job to a client, as they grow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ringleader.jobs.machine.job_folder import JobFolder
from ringleader.jobs.machine.log_files import find_logs, read_log, tail_position
from ringleader.jobs.protocol.job_record import JobOutcome, JobRecord
from ringleader.jobs.protocol.messages import PART_BYTES, Changed, Follow, Output
from ringleader.node.agent.service_stream import ServiceStream

POLL_S = 0.05
"""How often the logs are looked at; a line is on its way after half of it."""
LOOK_S = 0.5
"""How often a client that does not read is looked at."""
RECORD_POLLS = 4
"""The record is looked at every so many polls."""
WITHHELD = "takes no jobs of other machines any more, and shows none of its output"

MayRead = Callable[[], bool]
"""Whether the client may see output now; raises if it may not even see the record."""


def without_output(record: JobRecord) -> JobRecord:
    """Return how a job stands without anything that its program has said."""
    said = record.outcome or JobOutcome()
    outcome = msgspec.structs.replace(said, text=WITHHELD)
    return msgspec.structs.replace(
        record, outcome=outcome, written=[], num_written=0, num_bytes=0
    )


@dataclass(slots=True)
class _Reader:
    folder: JobFolder
    positions: dict[str, int]
    tail_bytes: int
    may_read: MayRead

    async def send_new(self, stream: ServiceStream) -> None:
        """Send what the logs have and the client has not."""
        for log, segments in find_logs(self.folder.logs).items():
            if log not in self.positions:
                has_tail = bool(self.tail_bytes)
                begin = tail_position(segments, self.tail_bytes) if has_tail else 0
                self.positions[log] = begin
            while self.may_read():
                begin, data = read_log(segments, self.positions[log], PART_BYTES)
                if not data:
                    break
                await stream.send(Output(log, begin, data))
                self.positions[log] = begin + len(data)


async def send_output(
    stream: ServiceStream, request: Follow, folder: JobFolder, may_read: MayRead
) -> None:
    """Send output and changes of the record until the job has ended here.

    Ends early if the client closes the connection, or may see no more, even if it does
    not read what was sent.
    """
    reader = _Reader(folder, dict(request.positions), request.tail_bytes, may_read)
    sending = asyncio.create_task(_send(stream, request, reader))
    end = asyncio.create_task(stream.reader.read(1))  # the client says nothing more
    both = [sending, end]
    try:
        while not any(task.done() for task in both):
            await asyncio.wait(
                both, return_when=asyncio.FIRST_COMPLETED, timeout=LOOK_S
            )
            may_read()
        if sending.done():
            sending.result()
    finally:
        for task in (sending, end):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _send(stream: ServiceStream, request: Follow, reader: _Reader) -> None:
    folder = reader.folder
    told: JobRecord | None = None
    polls = 0
    while True:
        record = folder.read() if polls % RECORD_POLLS == 0 else told
        if record is not None and not reader.may_read():
            record = without_output(record)
        await reader.send_new(stream)  # after the record: none is missed at the end
        reader.tail_bytes = 0  # logs that begin later are sent from their beginning
        if record is not None and record != told:
            await stream.send(Changed(record))
            told = record
        if record is not None and (record.state.is_over or not request.is_live):
            return
        polls += 1
        await asyncio.sleep(POLL_S)
