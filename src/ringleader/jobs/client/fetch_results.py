"""``fetch_results``: brings files that rank 0 wrote to the machine of the user."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ringleader.data.file_names import check_name
from ringleader.errors import ConfigError, ProtocolError
from ringleader.jobs.client.channel import Channel
from ringleader.jobs.protocol.job_spec import JobMachine
from ringleader.jobs.protocol.messages import EVERYTHING, Done, Fetch, FilePart

ANSWER_S = 120.0
_NOT_ON_WINDOWS = re.compile(r'[:*?"<>|]')
_TEMPORARY = ".fetching-"


async def fetch_results(
    path: Path, machine: JobMachine, job: str, *, name: str, into: Path
) -> list[str]:
    """Fetch the file or folder ``name`` of a job into ``into``; return the names.

    ``EVERYTHING``: all that the program wrote, as it lies in its project.

    A file is there completely or not at all, and replaces one that was there. Raises
    ``PeerRefused`` if rank 0 wrote no such file.
    """
    channel = await Channel.open(path, machine)
    fetched: list[str] = []
    receiver = _Receiver(machine.name, name, into)
    try:
        await channel.send(Fetch(job, name))
        while not isinstance(reply := await channel.receive(ANSWER_S), Done):
            if not isinstance(reply, FilePart):
                text = f"sent {type(reply).__name__} instead of a file"
                raise ProtocolError(machine.name, text)
            if receiver.take(reply):
                fetched.append(reply.name)
    except OSError as exc:
        raise ConfigError(f"{into / name}: cannot be written: {exc.strerror}") from exc
    finally:
        receiver.close()
        channel.close()
    return fetched


def _check_name_here(name: str) -> None:
    """Raise ValueError unless a name stays below its folder on this system.

    What a program writes on one Linux machine another one takes: times with colons.
    """
    check_name(name if sys.platform == "win32" else _NOT_ON_WINDOWS.sub("_", name))


class _Receiver:
    """Writes files as their parts arrive."""

    def __init__(self, machine: str, name: str, into: Path) -> None:
        self._machine = machine
        self._wanted = Path(os.path.normpath(name)).as_posix()
        self._into = into
        self._file: BinaryIO | None = None
        self._name = ""

    def take(self, part: FilePart) -> bool:
        """Write a part; return whether its file is complete."""
        if self._file is None:
            self._open(part.name)
        if part.name != self._name or self._file is None:
            raise ProtocolError(self._machine, "mixes the parts of two files")
        self._file.write(part.data)
        if not part.is_last:
            return False
        self._file.close()
        self._file = None
        os.replace(self._temporary, self._into / self._name)
        return True

    def close(self) -> None:
        """Drop a file that is not complete."""
        if self._file is not None:
            self._file.close()
            with suppress(OSError):
                self._temporary.unlink()

    @property
    def _temporary(self) -> Path:
        target = self._into / self._name
        return target.with_name(f"{_TEMPORARY}{os.getpid()}-{target.name}"[:255])

    def _open(self, name: str) -> None:
        try:
            _check_name_here(name)
        except ValueError as exc:
            raise ProtocolError(self._machine, f"sent a file: {exc}") from None
        is_any = self._wanted == EVERYTHING
        if (
            not is_any
            and name != self._wanted
            and not name.startswith(f"{self._wanted}/")
        ):
            raise ProtocolError(self._machine, f"sent {name!r}, which nobody asked for")
        folder = (self._into / name).parent
        folder.mkdir(parents=True, exist_ok=True)
        if not folder.resolve().is_relative_to(self._into.resolve()):
            raise ConfigError(f"{folder}: a link leads out of {self._into}")
        self._name = name
        self._file = open(self._temporary, "wb")  # noqa: SIM115 - closed by ``close``
