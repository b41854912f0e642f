"""Mdns announces this node on the chosen interfaces and collects sightings of others.

Everything runs on one asyncio loop. Records that are heard go into a bounded table
(``sightings``) that nobody has to drain; the callback only tells that there is
something new. A node is announced at once, without the usual probing for 0.75 s whether
its name is free: a label of 80 random bits is.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from zeroconf import (  # type: ignore[attr-defined]  # kept for users, not in __all__
    DNSService,
    DNSText,
    ServiceInfo,
    Zeroconf,
)
from zeroconf.asyncio import AsyncZeroconf

from ringleader.discovery.multicast import (
    DiscoveryUnavailable,
    build_query,
    listen,
    open_zeroconf,
    sender_addresses,
    wait_until_open,
)
from ringleader.discovery.record import (
    SERVICE,
    addresses_to_announce,
    encode,
    new_label,
    sign,
)
from ringleader.discovery.sighting import Sighting, SightingConfig, Sightings
from ringleader.topology.interfaces import Interface


@dataclass(frozen=True, slots=True, kw_only=True)
class MdnsConfig:
    """How often we query for other nodes."""

    first_queries_s: tuple[float, ...] = (0.0, 0.3, 1.5, 4.0)
    """When to query after a start or on a new network. Within a second, the same
    query counts as a repetition and is not answered; the first one asks for direct
    answers."""

    query_every_s: float = 30.0
    """Later interval, plus or minus a fifth. Nodes that answered lately are listed
    as known, so they do not answer."""

    query_seeking_s: float = 5.0
    """The same while nobody is in sight, or after ``seek``: nothing here changes when a
    switch or an access point begins to pass multicast again. One packet of 60 bytes."""

    seek_s: float = 600.0
    """How long the others are looked for after one was lost."""

    recheck_s: float = 1.1
    """How long after the last query a goodbye triggers another one, to check it.
    With the 1.4 s that an answer may take, this is less than the grace time of a
    goodbye."""

    sightings: SightingConfig = field(default_factory=SightingConfig)


class Mdns:
    """This node on the LAN. Call all methods from one asyncio loop."""

    def __init__(
        self,
        *,
        port: int,
        key: bytes,
        on_sighting: Callable[[Sighting], None] | None = None,
        config: MdnsConfig | None = None,
    ) -> None:
        self._port = port
        self._key = key
        self._on_sighting = on_sighting
        self._config = config or MdnsConfig()
        self.sightings = Sightings(key, self._config.sightings)
        """The nodes that were seen; it also tells which one to dial next."""

        self.trouble: DiscoveryUnavailable | None = None
        """Why nobody can be found, if known."""

        self.labels: tuple[str, ...] = ()
        """Our label on this network, then the one before, which peers may still use."""

        self._net: AsyncZeroconf | None = None
        self._announced: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._tasks: list[asyncio.Future[None]] = []
        self._recheck: asyncio.TimerHandle | None = None
        self._queried_s = 0.0
        self._seek_until_s = -math.inf
        self._seeks = asyncio.Event()
        self._lock = asyncio.Lock()

    async def start(self, chosen: Sequence[Interface]) -> DiscoveryUnavailable | None:
        """Announce this node on these interfaces; return why that fails, or None."""
        return await self.update(chosen)

    async def update(self, chosen: Sequence[Interface]) -> DiscoveryUnavailable | None:
        """Move to these interfaces.

        Call it every few seconds; without a change it only retries what could not be
        opened.
        """
        async with self._lock:
            announced = (
                tuple(sender_addresses(chosen)),
                tuple(addresses_to_announce(chosen)),
            )
            if self._net is not None and announced == self._announced:
                await self._retry_sockets(self._net)
                return self.trouble
            await self._close()
            if announced != self._announced:
                # A new label on every network, so that nobody can track us.
                self.labels = (new_label(secrets.token_bytes(10)), *self.labels[:1])
            self._announced = announced
            self.sightings.settle(chosen, self.labels)
            self.trouble = await self._open(chosen)
            return self.trouble

    def seek(self) -> None:
        """Query more often for a while: a node was lost, and may come back."""
        self._seek_until_s = asyncio.get_running_loop().time() + self._config.seek_s
        self._seeks.set()

    async def stop(self) -> None:
        """Send a goodbye, which takes a quarter of a second, and close. Idempotent."""
        async with self._lock:
            await self._close()
            self._announced = None

    async def _retry_sockets(self, net: AsyncZeroconf) -> None:
        """Open sockets that failed before, such as an IPv6 address under duplicate
        check."""
        with contextlib.suppress(RuntimeError):  # an address is gone; retried later
            await net.async_update_interfaces()

    async def _open(self, chosen: Sequence[Interface]) -> DiscoveryUnavailable | None:
        zeroconf = open_zeroconf(chosen)
        if isinstance(zeroconf, DiscoveryUnavailable):
            return zeroconf
        self._net = AsyncZeroconf(zc=zeroconf)
        trouble = await wait_until_open(zeroconf)
        if trouble is not None:
            await self._close()
            return trouble
        listen(zeroconf, SERVICE, self._on_record, self._on_goodbye)
        self._keep(await self._announce(addresses_to_announce(chosen)))
        self._keep(self._query_forever(zeroconf))
        return None

    async def _announce(self, addresses: Sequence[str]) -> Awaitable[None]:
        assert self._net is not None
        label = self.labels[0]
        record = sign(label, self._port, addresses, self._key)
        info = ServiceInfo(
            SERVICE,
            f"{label}.{SERVICE}",
            port=self._port,
            properties=encode(record),
            server=f"{label}.local.",
            parsed_addresses=list(addresses),
        )
        return await self._net.async_register_service(info, cooperating_responders=True)

    def _keep(self, work: Awaitable[None]) -> None:
        """Keep a reference to a task until we close; asyncio itself holds none."""
        self._tasks.append(asyncio.ensure_future(work))

    async def _close(self) -> None:
        net, self._net = self._net, None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None
        if tasks:
            await asyncio.wait(tasks)
        if net is not None:
            await net.async_close()

    async def _query_forever(self, zeroconf: Zeroconf) -> None:
        start_s = asyncio.get_running_loop().time()
        for number, at_s in enumerate(self._config.first_queries_s):
            passed_s = asyncio.get_running_loop().time() - start_s
            await asyncio.sleep(at_s - passed_s)
            self._query(zeroconf, is_direct=number == 0)
        while True:
            await self._wait_for_turn()
            self._query(zeroconf, is_direct=False)

    async def _wait_for_turn(self) -> None:
        """Wait until the next query is due, which is sooner after ``seek``."""
        loop, spread = asyncio.get_running_loop(), random.uniform(0.8, 1.2)
        last_s = self._queried_s
        while True:
            is_seeking = not self.sightings.all() or loop.time() < self._seek_until_s
            config = self._config
            pause_s = config.query_seeking_s if is_seeking else config.query_every_s
            self._seeks.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(last_s + pause_s * spread):
                    await self._seeks.wait()
                    continue
            return

    def _query(self, zeroconf: Zeroconf, *, is_direct: bool) -> None:
        self._queried_s = asyncio.get_running_loop().time()
        self.sightings.expire(self._queried_s)
        known = self.sightings.fresh_labels(self._queried_s)
        zeroconf.async_send(build_query(SERVICE, is_direct=is_direct, known=known))

    def _on_record(self, label: str, where: DNSService, text: DNSText) -> None:
        now_s = asyncio.get_running_loop().time()
        sighting = self.sightings.hear(label, where.port, text.text, now_s)
        if sighting is not None and self._on_sighting is not None:
            self._on_sighting(sighting)

    def _on_goodbye(self, label: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self.sightings.say_goodbye(label, now_s) or self._net is None:
            return
        if self._recheck is None:  # one query for all goodbyes that arrive together
            wait_s = max(0.0, self._queried_s + self._config.recheck_s - now_s)
            loop = asyncio.get_running_loop()
            self._recheck = loop.call_later(wait_s, self._query_again, self._net)

    def _query_again(self, net: AsyncZeroconf) -> None:
        self._recheck = None
        self._query(net.zeroconf, is_direct=False)
