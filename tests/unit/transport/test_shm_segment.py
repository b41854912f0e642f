"""Shared memory: areas do not overlap, untouched ones are free, strangers refused."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ringleader.errors import ProtocolError
from ringleader.transport import memory_link, shm_segment
from ringleader.transport.shm_link import SLEEP_FLAG, ShmLink, ShmPeer, _slots
from ringleader.transport.shm_segment import (
    NUM_SIGNALS,
    PAGE,
    RING,
    SEM_STRIDE,
    Geometry,
    Segment,
    Signal,
)

ME = bytes(range(16))
SMALL = Geometry(2, stream_bytes=PAGE)


def areas(geometry: Geometry) -> Iterator[tuple[str, int, int]]:
    """(name, start, end) of everything that lies in a segment."""
    yield "incarnation", 0, 16
    yield "signal mode", 16, 17
    yield "sleep flag", SLEEP_FLAG, SLEEP_FLAG + 1
    for dst in range(geometry.size):
        for signal in range(NUM_SIGNALS):
            index = dst * NUM_SIGNALS + signal
            at = geometry.signals_at + index * SEM_STRIDE
            yield f"semaphore {signal} of {dst}", at, at + 32
            if signal == Signal.ONEWAY:
                yield f"announcements of {dst}", at + 64, at + 64 + RING
    for number in range(geometry.num_relay_slots):
        at = geometry.relay_slot_at(number)
        yield f"place {number}", at, at + PAGE + geometry.part_bytes
    for name, start, count in (
        ("exchange", geometry.exchanges_at, geometry.num_exchanges),
        ("oneway", geometry.oneways_at, geometry.num_oneways),
    ):
        stride = geometry.slot_stride
        for i in range(count):
            yield f"{name} {i}", start + i * stride, start + (i + 1) * stride
    stride = PAGE + geometry.stream_bytes
    for i in range(geometry.size * geometry.num_streams):
        at = geometry.streams_at + i * stride
        yield f"stream slot {i}", at, at + stride


@contextmanager
def created() -> Iterator[tuple[int, Segment]]:
    """Not a fixture: pytest would hold the mapping until after the leak check."""
    fd, made = shm_segment.create(SMALL, ME)
    yield fd, made
    os.close(fd)


def test_areas_do_not_overlap_and_end_with_the_file() -> None:
    for size in range(2, 65):
        geometry = Geometry(size)
        placed = sorted(areas(geometry), key=lambda area: area[1])
        for (name, _, end), (following, start, _) in itertools.pairwise(placed):
            assert end <= start, f"{size} ranks: {name} reaches into {following}"
        assert placed[-1][2] == geometry.total_bytes, f"{size} ranks"


@pytest.mark.parametrize("size", [2, 3, 64])
def test_what_holds_tensors_starts_on_a_page(size: int) -> None:
    for name, start, _ in areas(Geometry(size)):
        if name.startswith(("shot", "exchange", "oneway", "stream")):
            assert start % PAGE == 0, name


def test_signals_and_streams_are_taken_from_their_own_area() -> None:
    """The code that uses the areas agrees with the geometry that places them."""
    fd, made = shm_segment.create(SMALL, ME)
    os.close(fd)
    for dst in range(SMALL.size):
        ring = shm_segment.announcements(made, SMALL, dst)
        ring[:] = bytes([dst + 1]) * RING
        for length, content in _slots(made, SMALL, dst):
            length[0] = dst + 1
            content[:] = bytes([dst + 1]) * len(content)
    whole = bytes(made.view)
    for name, start, end in areas(SMALL):
        content_at = start + (PAGE if "slot" in name else 0)
        if name.startswith("announcements"):
            assert whole[start:end] == bytes([int(name[-1]) + 1]) * RING
        elif name.startswith("stream"):
            dst = int(name.split()[-1]) // SMALL.num_streams
            assert whole[content_at:end] == bytes([dst + 1]) * SMALL.stream_bytes
        elif name.startswith(("shot", "exchange", "oneway")):
            assert not any(whole[start:end]), f"somebody wrote into {name}"


@pytest.mark.parametrize("size", [2, 64])
def test_what_is_not_touched_costs_nothing(size: int) -> None:
    geometry = Geometry(size)
    fd, _ = shm_segment.create(geometry, ME)
    status = os.fstat(fd)
    os.close(fd)
    assert status.st_size == geometry.total_bytes
    # Page 0 and the semaphores, which are written at once.
    touched = PAGE + -(-size * NUM_SIGNALS * SEM_STRIDE // PAGE) * PAGE
    assert status.st_blocks * 512 <= touched


def test_a_segment_has_no_name() -> None:
    with created() as (fd, _):
        assert os.fstat(fd).st_nlink == 0


def test_an_attached_segment_is_the_same_memory() -> None:
    with created() as (fd, mine):
        theirs = shm_segment.attach(fd, SMALL, ME)
    mine.view[-1] = 7
    assert theirs.view[-1] == 7
    assert bytes(theirs.view[:16]) == ME


def test_attach_refuses_another_size() -> None:
    with created() as (fd, _), pytest.raises(OSError, match="another size"):
        shm_segment.attach(fd, Geometry(3), ME)


def test_attach_refuses_another_incarnation() -> None:
    with created() as (fd, _), pytest.raises(OSError, match="another process"):
        shm_segment.attach(fd, SMALL, bytes(16))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux seals files")
def test_attach_refuses_what_could_shrink() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SMALL.total_bytes)
    os.pwrite(fd, ME, 0)
    with pytest.raises(OSError, match="not sealed"):
        shm_segment.attach(fd, SMALL, ME)
    os.close(fd)


def test_attach_refuses_what_is_no_segment_at_all() -> None:
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="another size"):
        shm_segment.attach(reader, SMALL, ME)
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux seals files")
def test_a_peer_cannot_cut_off_memory_we_have_mapped() -> None:
    with created() as (fd, _), pytest.raises(PermissionError):
        os.ftruncate(fd, PAGE)


@pytest.mark.parametrize("lie", [0, SMALL.stream_bytes + 1, 2**64 - 1])
def test_a_slot_of_impossible_length_is_a_protocol_error(lie: int) -> None:
    doorbells = memory_link.socket_pair()
    made = [shm_segment.create(SMALL, ME) for _ in range(2)]
    mine, theirs = (each for _, each in made)
    for fd, _ in made:
        os.close(fd)
    left = ShmPeer(doorbells[0], (0, 1), (mine, theirs), SMALL)
    right = ShmPeer(doorbells[1], (1, 0), (theirs, mine), SMALL)
    link = ShmLink(left)
    assert link.try_send(memoryview(b"bytes")) == 5
    _slots(mine, SMALL, 1)[0][0][0] = lie
    with pytest.raises(ProtocolError, match=f"wrote {lie} bytes") as caught:
        ShmLink(right).try_recv_into(memoryview(bytearray(16)))
    assert caught.value.peer == 0
    left.close()
    right.close()
