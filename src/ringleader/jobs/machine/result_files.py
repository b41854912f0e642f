"""``send_files``: sends files that the program wrote to whoever fetches them."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ringleader.data.file_names import is_text
from ringleader.errors import ConfigError
from ringleader.jobs.machine.job_folder import JobFolder
from ringleader.jobs.protocol.messages import (
    EVERYTHING,
    PART_BYTES,
    Done,
    Fetch,
    FilePart,
)
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.project import find_written

MAX_RESULTS = 10_000


async def send_files(
    stream: ServiceStream,
    request: Fetch,
    folder: JobFolder,
    check: Callable[[], None],
) -> None:
    """Send the file ``request.path``, all files of a folder of that name, or all that
    the program wrote.

    ``check`` raises as soon as the client may have them no longer.
    """
    work = Path(folder.stored().work)
    if request.path == EVERYTHING:
        work, finding = folder.work, asyncio.to_thread(_find_all, folder)
    else:
        finding = asyncio.to_thread(find_results, work, request.path)
    for path in await finding:
        name = path.relative_to(work).as_posix()
        if not is_text(name):
            text = "its name is not valid UTF-8; let the program choose another one"
            raise ConfigError(f"--fetch {request.path}: {name!a}: {text}")
        try:
            await _send_file(stream, path, name, check)
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    await stream.send(Done())


def _open(path: Path) -> BinaryIO:
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags | getattr(os, "O_NONBLOCK", 0)), "rb")


async def _send_file(
    stream: ServiceStream, path: Path, name: str, check: Callable[[], None]
) -> None:
    with _open(path) as file:
        left = os.fstat(file.fileno()).st_size  # it may grow meanwhile
        while True:
            data = await asyncio.to_thread(file.read, min(PART_BYTES, left))
            left -= len(data)
            is_last = not data or not left
            check()
            await stream.send(FilePart(name, data, is_last))
            if is_last:
                return


def _find_all(folder: JobFolder) -> list[Path]:
    """Return all that the program wrote; raises ``ConfigError``."""
    manifest = folder.manifest()
    if manifest is None:
        text = "its files did not travel, so nobody knows what it wrote; name a path"
        raise ConfigError(f"--fetch: job {folder.id}: {text}")
    found = [folder.work / name for name in find_written(manifest, folder.work)]
    if not found:
        text = f"it wrote no file in {folder.work}, where its project is"
        raise ConfigError(f"--fetch: job {folder.id}: {text}")
    if len(found) > MAX_RESULTS:
        text = f"it wrote {len(found)} files; at most {MAX_RESULTS} can be fetched"
        raise ConfigError(f"--fetch: job {folder.id}: {text}; name a path")
    return found


def find_results(work: Path, name: str) -> list[Path]:
    """Return the plain files at a path below ``work``; raises ``ConfigError``.

    Links are not followed: they could lead out of the job's folder.
    """
    wanted = Path(os.path.normpath(work / name))
    if work not in wanted.parents:
        text = "name a file or a folder that the program writes, below its folder"
        raise ConfigError(f"--fetch {name}: {text}")
    inside = str(wanted.relative_to(work))
    if os.path.realpath(wanted) != os.path.join(os.path.realpath(work), inside):
        raise ConfigError(f"--fetch {name}: it is a link, or lies behind one")
    found = list(_plain_files(wanted))
    if not found:
        raise ConfigError(f"--fetch {name}: rank 0 wrote no such file in {work}")
    if len(found) > MAX_RESULTS:
        text = f"{len(found)} files; at most {MAX_RESULTS} can be fetched"
        raise ConfigError(f"--fetch {name}: {text}")
    return found


def _plain_files(path: Path) -> Iterator[Path]:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISREG(mode):
        yield path
    elif stat.S_ISDIR(mode):
        for each in sorted(path.iterdir()):
            yield from _plain_files(each)
