"""Discovery by mDNS: announce this node on the chosen interfaces, hear of the others.

Everything runs on one asyncio loop. What is heard goes into a bounded table
(``sightings``) that nobody has to drain; the callback only says that it is worth a
look. A node is announced at once, without the usual probing for 0.75 s whether its name
is free: a label of 80 random bits is.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    """How often we ask who is there."""

    first_asks_s: tuple[float, ...] = (0.0, 0.3, 1.5, 4.0)
    """When to ask after a start or on a new network. Less than a second apart, the same
    question counts as a repetition and is not answered; the first one is direct."""

    ask_every_s: float = 30.0
    """Later, give or take a fifth. Whoever answered lately is told not to."""

    recheck_s: float = 1.1
    """How long after the last question a goodbye makes us ask whether it is true; with
    the 1.4 s that an answer may take, this is less than a goodbye's grace."""

    sightings: SightingConfig = field(default_factory=SightingConfig)


class Mdns:
    """This node on the LAN. All methods belong to one asyncio loop."""

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
        """Whom we saw; ask it whom to dial."""

        self.trouble: DiscoveryUnavailable | None = None
        """Why nobody is found, if we know."""

        self.labels: tuple[str, ...] = ()
        """Our name on this network, and before it the one that peers may still use."""

        self._net: AsyncZeroconf | None = None
        self._places: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._tasks: list[asyncio.Future[None]] = []
        self._recheck: asyncio.TimerHandle | None = None
        self._asked_s = 0.0
        self._lock = asyncio.Lock()

    async def start(self, chosen: Sequence[Interface]) -> DiscoveryUnavailable | None:
        """Announce this node on these interfaces; says why, if it cannot be."""
        return await self.update(chosen)

    async def update(self, chosen: Sequence[Interface]) -> DiscoveryUnavailable | None:
        """Move to these interfaces. Call it every few seconds; without a change it only
        mends what could not be opened before."""
        async with self._lock:
            places = (
                tuple(sender_addresses(chosen)),
                tuple(addresses_to_announce(chosen)),
            )
            if self._net is not None and places == self._places:
                await self._mend(self._net)
                return self.trouble
            await self._close()
            if places != self._places:
                # A new name on every network: nobody follows us from one to the next.
                self.labels = (new_label(secrets.token_bytes(10)), *self.labels[:1])
            self._places = places
            self.sightings.settle(chosen, self.labels)
            self.trouble = await self._open(chosen)
            return self.trouble

    async def stop(self) -> None:
        """Say goodbye, a quarter of a second long, and close everything. Idempotent."""
        async with self._lock:
            await self._close()
            self._places = None

    async def _mend(self, net: AsyncZeroconf) -> None:
        """Open what could not be before, such as an IPv6 address under check."""
        with contextlib.suppress(RuntimeError):  # an address went; the next call sees
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
        listen(zeroconf, SERVICE, self._hear, self._hear_goodbye)
        self._keep(await self._announce(addresses_to_announce(chosen)))
        self._keep(self._ask_forever(zeroconf))
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
        """Hold on to a task, which asyncio itself does not, until we close."""
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

    async def _ask_forever(self, zeroconf: Zeroconf) -> None:
        start_s = asyncio.get_running_loop().time()
        for number, at_s in enumerate(self._config.first_asks_s):
            passed_s = asyncio.get_running_loop().time() - start_s
            await asyncio.sleep(at_s - passed_s)
            self._ask(zeroconf, is_direct=number == 0)
        while True:
            await asyncio.sleep(self._config.ask_every_s * random.uniform(0.8, 1.2))
            self._ask(zeroconf, is_direct=False)

    def _ask(self, zeroconf: Zeroconf, *, is_direct: bool) -> None:
        self._asked_s = asyncio.get_running_loop().time()
        self.sightings.expire(self._asked_s)
        known = self.sightings.fresh_labels(self._asked_s)
        zeroconf.async_send(build_query(SERVICE, is_direct=is_direct, known=known))

    def _hear(self, label: str, where: DNSService, text: DNSText) -> None:
        now_s = asyncio.get_running_loop().time()
        sighting = self.sightings.hear(label, where.port, text.text, now_s)
        if sighting is not None and self._on_sighting is not None:
            self._on_sighting(sighting)

    def _hear_goodbye(self, label: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self.sightings.say_goodbye(label, now_s) or self._net is None:
            return
        if self._recheck is None:  # one question for all goodbyes that come together
            wait_s = max(0.0, self._asked_s + self._config.recheck_s - now_s)
            loop = asyncio.get_running_loop()
            self._recheck = loop.call_later(wait_s, self._ask_again, self._net)

    def _ask_again(self, net: AsyncZeroconf) -> None:
        self._recheck = None
        self._ask(net.zeroconf, is_direct=False)
