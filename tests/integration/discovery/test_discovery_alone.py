"""Discovery inside one process, on the loopback: works without root, leaves nothing."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from ringleader.discovery import pairing_announcement
from ringleader.discovery.mdns import Mdns
from ringleader.discovery.multicast import UnavailableReason, port_trouble
from ringleader.discovery.multicast_check import check_multicast
from ringleader.topology.interfaces import (
    Interface,
    InterfaceKind,
    choose_interfaces,
    list_interfaces,
)

DEADLINE_S = 120.0
KEY, OTHER = secrets.token_bytes(32), secrets.token_bytes(32)


def loopback() -> list[Interface]:
    here = list_interfaces()
    names = [i.name for i in here if i.kind is InterfaceKind.LOOPBACK]
    return choose_interfaces(here, names[:1])[0]


async def start(key: bytes, port: int) -> tuple[Mdns, asyncio.Queue[tuple[str, int]]]:
    seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    mdns = Mdns(
        port=port,
        key=key,
        on_sighting=lambda s: seen.put_nowait((s.addresses[0], s.port)),
    )
    assert await mdns.start(loopback()) is None
    return mdns, seen


def run_within_deadline(work: object) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            assert asyncio.iscoroutine(work)
            await work

    asyncio.run(bounded())


@pytest.mark.skipif(port_trouble() is not None, reason=str(port_trouble()))
class TestOnTheLoopback:
    def test_two_members_meet_and_a_stranger_does_not(self) -> None:
        async def scene() -> None:
            one, seen_by_one = await start(KEY, 29601)
            stranger, seen_by_stranger = await start(OTHER, 29602)
            two, seen_by_two = await start(KEY, 29603)
            assert await seen_by_one.get() == ("127.0.0.1", 29603)
            assert await seen_by_two.get() == ("127.0.0.1", 29601)
            while stranger.sightings.num_foreign < 2:  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.02)
            assert seen_by_stranger.empty()
            await two.stop()
            await two.stop()  # again is harmless
            while one.sightings.all():  # noqa: ASYNC110 (a table, no event)
                await asyncio.sleep(0.02)
            assert await two.start(loopback()) is None, "it can come back"
            assert len(set(two.labels)) == 2
            assert await seen_by_one.get() == ("127.0.0.1", 29603)
            for mdns in (one, stranger, two):
                await mdns.stop()

        run_within_deadline(scene())

    def test_no_interface_is_said_and_mended_later(self) -> None:
        async def scene() -> None:
            mdns = Mdns(port=29601, key=KEY)
            trouble = await mdns.start([])
            assert trouble is not None
            assert trouble.why is UnavailableReason.NO_INTERFACE
            assert mdns.trouble is trouble
            assert await mdns.update(loopback()) is None
            assert await mdns.update(loopback()) is None, "no change, no trouble"
            await mdns.stop()

        run_within_deadline(scene())

    def test_a_start_that_is_cancelled_leaves_nothing(self) -> None:
        async def scene() -> None:
            mdns = Mdns(port=29601, key=KEY)
            task = asyncio.create_task(mdns.start(loopback()))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await mdns.stop()

        run_within_deadline(scene())

    def test_a_pairing_window_opens_and_closes(self) -> None:
        with pairing_announcement.announce_pairing(29604, loopback()) as trouble:
            assert trouble is None
            assert ("127.0.0.1", 29604) in pairing_announcement.find_pairing_hosts(
                DEADLINE_S, loopback()
            )
        assert ("127.0.0.1", 29604) not in pairing_announcement.find_pairing_hosts(
            0.2, loopback()
        )

    def test_the_probe_hears_itself(self) -> None:
        (here,) = loopback()
        probe = check_multicast(here, wait_s=2.0)
        assert probe.trouble is None
        assert probe.loops_back
        assert not probe.has_multicast, "there is nobody else on the loopback"
