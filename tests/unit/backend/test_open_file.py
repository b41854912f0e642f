"""Files of other processes, found by their descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ringleader.backend.open_file import OpenFile

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems have no /proc"
)
SIZE = 4096
CHILD = """
import os, sys
fd = os.memfd_create("test")
os.write(fd, bytes([7]) * 4096)
facts = os.fstat(fd)
print(os.getpid(), fd, facts.st_dev, facts.st_ino, flush=True)
sys.stdin.readline()
print(os.pread(fd, 1, 5)[0], flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process with a file of 4096 bytes, all 7."""
    command, pipe = [sys.executable, "-c", CHILD], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def file_of(child: subprocess.Popen[str]) -> OpenFile:
    assert child.stdout is not None
    return OpenFile(*map(int, child.stdout.readline().split()))


def test_both_processes_see_what_one_writes(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    array = file_of(child).map(SIZE)
    assert array.tolist() == [7] * SIZE
    array[5] = 9
    child.stdin.write("\n")
    child.stdin.flush()
    assert int(child.stdout.readline()) == 9


def test_what_is_mapped_outlives_the_process(child: subprocess.Popen[str]) -> None:
    array = file_of(child).map(SIZE)
    child.kill()
    child.wait(30)
    assert array[-1] == 7


def test_another_file_is_refused(child: subprocess.Popen[str]) -> None:
    file = file_of(child)
    for other in (
        replace(file, inode=file.inode + 1),
        replace(file, device=file.device + 1),
    ):
        with pytest.raises(OSError, match="is another file"):
            other.map(SIZE)
    with pytest.raises(OSError, match="has 4096 bytes, not 8192"):
        file.map(2 * SIZE)
    with pytest.raises(OSError, match="has 4096 bytes, not 100"):
        file.map(100)


def test_a_process_or_descriptor_that_is_not_there(
    child: subprocess.Popen[str],
) -> None:
    file = file_of(child)
    for other in (replace(file, process=2**30), replace(file, descriptor=999)):
        with pytest.raises(OSError, match="No such file"):
            other.map(SIZE)


def test_no_descriptor_stays_open(child: subprocess.Popen[str]) -> None:
    file = file_of(child)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="bytes"):
        file.map(100)
    array = file.map(SIZE)
    assert len(os.listdir("/proc/self/fd")) == before
    assert array[0] == 7


def test_a_file_of_this_process_describes_itself() -> None:
    descriptor = os.memfd_create("test")
    try:
        os.ftruncate(descriptor, SIZE)
        assert OpenFile.of(descriptor).map(SIZE).sum() == 0
    finally:
        os.close(descriptor)
