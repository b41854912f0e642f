"""A machine takes the files of a project; what fails there reaches the sender."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ringleader.errors import ConfigError, PeerRefused, ProtocolError
from ringleader.ids import NodeId
from ringleader.jobs.machine.job_environment import job_environment
from ringleader.jobs.machine.project_transfer import receive_project
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.jobs.protocol.messages import Chunk, ChunksNeeded, decode_job_reply
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.project import (
    BlobStore,
    EnvironmentNeeds,
    ProjectFiles,
    collect,
    keep,
    local_facts,
    unpack,
)
from ringleader.project.environment import NeededDistribution
from ringleader.project.manifest import encode

LIMIT_S = 120.0
MIB = 1 << 20


def allowed() -> None:
    """The permission holds."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts file systems")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def project(tmp_path: Path) -> ProjectFiles:
    """Three chunks and a script."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print()")
    (folder / "data.bin").write_bytes(os.urandom(3 * MIB))
    return collect(folder / "train.py")


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ServiceStream, ServiceStream]]:
    """The two ends of a connection."""
    made = []
    for sock in socket.socketpair():
        reader, writer = await asyncio.open_connection(sock=sock)
        made.append(ServiceStream(NodeId("a" * 52), "studio", "", reader, writer))
    try:
        yield made[0], made[1]
    finally:
        for stream in made:
            stream.abort()
            await asyncio.gather(stream.writer.wait_closed(), return_exceptions=True)


async def needed(stream: ServiceStream) -> list[str]:
    reply = decode_job_reply(await stream.read(), "m1")
    assert isinstance(reply, ChunksNeeded)
    return reply.digests


def test_only_what_is_missing_travels_and_a_broken_transfer_goes_on(
    tmp_path: Path, project: ProjectFiles
) -> None:
    ours, theirs = BlobStore(tmp_path / "ours"), BlobStore(tmp_path / "theirs")
    keep(project, ours)
    chunks = list(project.manifest.chunks())

    async def send(job: str, limit: int) -> list[str]:
        async with asyncio.timeout(LIMIT_S), connected() as (here, there):
            work = receive_project(
                there, encode(project.manifest), theirs, tmp_path / job, allowed
            )
            receiving = asyncio.create_task(work)
            digests = await needed(here)
            for digest in digests[:limit]:
                await here.send(Chunk(digest, ours.get(digest)))
            if limit < len(digests):
                here.writer.write_eof()
            await asyncio.gather(receiving, return_exceptions=True)
            return digests

    assert asyncio.run(send("one", 2)) == chunks
    assert not (tmp_path / "one").exists()
    assert asyncio.run(send("two", 99)) == chunks[2:], "two have arrived before"
    assert asyncio.run(send("three", 99)) == []
    data = (project.root / "data.bin").read_bytes()
    assert (tmp_path / "two/data.bin").read_bytes() == data
    assert (tmp_path / "three/data.bin").read_bytes() == data


def test_a_disk_that_gets_full_meanwhile_is_told_after_the_last_chunk(
    tmp_path: Path, disk: Path, project: ProjectFiles
) -> None:
    ours, theirs = BlobStore(tmp_path / "ours"), BlobStore(disk / "store")
    keep(project, ours)

    async def send() -> None:
        async with asyncio.timeout(LIMIT_S), connected() as (here, there):
            work = receive_project(
                there, encode(project.manifest), theirs, disk / "job", allowed
            )
            receiving = asyncio.create_task(work)
            digests = await needed(here)
            (disk / "other program").write_bytes(bytes(8 * MIB - 64 * 1024))
            for digest in digests:  # none of them meets a closed connection
                await here.send(Chunk(digest, ours.get(digest)))
            with pytest.raises(ConfigError, match=r"disk of .* is full; make room"):
                await receiving

    asyncio.run(send())
    (disk / "other program").unlink()
    left = [path for path in disk.rglob("*") if path.is_file()]
    assert all(path.stat().st_size < 100 for path in left), "nothing half written"
    assert not list(disk.glob("*job*"))


def test_too_much_and_damaged_parts_are_refused(
    tmp_path: Path, disk: Path, project: ProjectFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def receive(body: bytes, store: BlobStore, data: bytes = b"") -> None:
        async with asyncio.timeout(LIMIT_S), connected() as (here, there):
            work = receive_project(there, body, store, tmp_path / "job", allowed)
            receiving = asyncio.create_task(work)
            if data:
                for digest in await needed(here):
                    await here.send(Chunk(digest, data))
            await receiving

    body, store = encode(project.manifest), BlobStore(tmp_path / "store")
    with pytest.raises(ProtocolError, match="sent a damaged part"):
        asyncio.run(receive(body, store, b"x"))
    with pytest.raises(ProtocolError, match="sent not a list of files"):
        asyncio.run(receive(b"{}", store))
    (disk / "other program").write_bytes(bytes(4 * MIB))
    with pytest.raises(ConfigError, match=r"is full: 6.29 MB are needed, \d"):
        asyncio.run(receive(body, BlobStore(disk / "store")))
    monkeypatch.setenv("RINGLEADER_PROJECT_MB", "1")
    with pytest.raises(ConfigError, match=r"has 3.15 MB, and takes 1 MB only"):
        asyncio.run(receive(body, store))
    assert not (tmp_path / "job").exists()
    assert not [path for path in store.folder.rglob("*") if path.is_file()]


@pytest.fixture
def cloning_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system whose files can share blocks."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(400 << 20)
    make = ["mkfs.btrfs", "-q", str(image)]
    if shutil.which(make[0]) is None or subprocess.run(make, check=False).returncode:
        pytest.skip("needs mkfs.btrfs")
    mount = ["mount", "-o", "loop", str(image), str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts file systems")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_jobs_share_the_blocks_of_the_store_where_the_disk_has_clones(
    tmp_path: Path, cloning_disk: Path
) -> None:
    """Until one writes: it changes its own copy only."""
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    script.write_text("1")
    data = os.urandom((32 << 20) + 1)
    (script.parent / "data.bin").write_bytes(data)
    files, store = collect(script), BlobStore(cloning_disk / "store")
    keep(files, store)
    os.sync()
    before = shutil.disk_usage(cloning_disk).used
    for name in ("one", "two"):
        unpack(files.manifest, store, cloning_disk / name)
    with open(cloning_disk / "one/data.bin", "r+b") as file:
        file.write(b"changed")
    os.sync()
    assert shutil.disk_usage(cloning_disk).used - before < 8 << 20
    assert (cloning_disk / "two/data.bin").read_bytes() == data
    assert (cloning_disk / "one/data.bin").read_bytes() == b"changed" + data[7:]
    unpack(files.manifest, store, cloning_disk / "three")  # reads all of the store


def test_no_environment_is_made_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installer is killed while it runs, and leaves nothing."""
    started, project = tmp_path / "started", tmp_path / "project"
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/uv").write_text(f"#!/bin/sh\necho $$ > {started}\nsleep 1000\n")
    (tmp_path / "tools/uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    project.mkdir()
    (project / "requirements.txt").write_text("rl-missing\n")
    wanted = NeededDistribution("rl-missing", "1", ("rl_missing",))
    here = local_facts(EnvironmentNeeds("", "", ()))
    needs = EnvironmentNeeds(here.python, here.ringleader, (wanted,))
    machine = JobMachine(NodeId("a" * 52), "m1")
    spec = JobSpec(
        id="job", script="train.py", machines=[machine], syncs_environment=True
    )

    def check() -> None:
        if started.exists() and started.read_text().endswith("\n"):
            raise PeerRefused("m1", "runs no jobs of other machines")

    async def make() -> None:
        async with asyncio.timeout(LIMIT_S), connected() as (_, there):
            home = tmp_path / "home"
            await job_environment(there, spec, needs, project, home, check)

    with pytest.raises(PeerRefused):
        asyncio.run(make())
    assert not Path(f"/proc/{int(started.read_text())}").exists()
    assert not list((tmp_path / "home/environments").glob("*/"))
