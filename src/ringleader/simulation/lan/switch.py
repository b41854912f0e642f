"""The switch of a LAN: bridges with ports, and the faults of the cables at its ports.

Faults act at the switch, so the hosts cannot see them, let alone undo them. A packet is
dropped by sending it to a bridge that has no ports: small kernels have no other action.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from ringleader.errors import RingleaderError
from ringleader.simulation.lan.ip_command import ip, run, tc, tc_batch
from ringleader.simulation.lan.rate_limit import limit_rate

SENT, RECEIVED = "ingress", "egress"
"""What a host sends comes in at its port; what it receives goes out there."""

Fault = tuple[object, ...]
"""The name of something that is dropped: what kind of fault, and where."""

EVERYTHING = "protocol all u32 match u32 0 0"
VOID = "void"
USUAL_MTU = 1500
MANY_SEGMENTS = 65535


@dataclass(slots=True, eq=False)
class Cable:
    """From an interface of a host to a port of the switch."""

    host: str
    """Namespace of the host."""
    device: str
    port: str
    mac: str
    rate: str | None = None
    slow: dict[str, str] = field(default_factory=dict)
    """MAC of the other end -> rate of what we send there."""
    mtu: int = USUAL_MTU
    """What the port carries when nothing is wrong with it."""
    carries: int = USUAL_MTU
    """What it carries now."""


@dataclass(slots=True, eq=False)
class Switch:
    """A namespace with one bridge per network. Use it from one thread at a time."""

    name: str
    """Of its namespace."""

    _bridges: dict[str, str] = field(default_factory=dict)
    _cables: list[Cable] = field(default_factory=list)
    _filtered: set[str] = field(default_factory=set)
    _drops: dict[Fault, list[str]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def build(self) -> None:
        """Make the namespace, and the place where dropped packets go."""
        run("ip", "netns", "add", self.name)
        self._add_bridge(VOID)

    def plug(self, host: str, device: str, network: str, number: int) -> Cable:
        """A cable from a new interface of ``host`` to the bridge of ``network``."""
        if network not in self._bridges:
            self._bridges[network] = f"bridge{len(self._bridges)}"
            self._add_bridge(self._bridges[network])
        serial = len(self._cables)
        port = f"port{serial}"
        mac = f"02:77:{serial >> 8:02x}:{serial & 255:02x}:00:{number:02x}"
        run(
            *("ip", "link", "add", "name", device, "netns", host, "address", mac),
            *("type", "veth", "peer", "name", port, "netns", self.name),
        )
        bridge = self._bridges[network]
        ip(self.name, "link", "set", port, "master", bridge, "up")
        ip(host, "link", "set", device, "up")
        cable = Cable(host, device, port, mac)
        self._cables.append(cable)
        return cable

    def add_stub(self, host: str) -> str:
        """A cable of ``host`` that leads nowhere; the name of its interface there."""
        serial = next(self._numbers)
        device, end = f"veth{serial:04x}", f"stub{serial}"
        run(
            *("ip", "link", "add", "name", device, "netns", host),
            *("type", "veth", "peer", "name", end, "netns", self.name),
        )
        ip(self.name, "link", "set", end, "up")
        return device

    def set_up(self, cable: Cable, *, is_up: bool) -> None:
        """Plug in or pull at the switch: no reset, just silence."""
        ip(self.name, "link", "set", cable.port, "up" if is_up else "down")

    def set_rate(self, cable: Cable, rate: str | None) -> None:
        """How fast a cable is, both ways."""
        # tc limits what leaves an interface: what the host sends at its own end, and
        # what it receives at the port of the switch.
        cable.rate = rate
        limit_rate(cable.host, cable.device, rate, cable.slow)
        limit_rate(self.name, cable.port, rate, {})

    def set_slow(self, cable: Cable, to: Cable, rate: str | None) -> None:
        """How fast one way between two cables is; None: as fast as they are."""
        cable.slow.pop(to.mac, None)
        if rate is not None:
            cable.slow[to.mac] = rate
        limit_rate(cable.host, cable.device, cable.rate, cable.slow)

    def set_mtu(self, cable: Cable, mtu: int) -> None:
        """The longest packet that the port carries, both ways; others just vanish."""
        ip(self.name, "link", "set", cable.port, "mtu", str(mtu))
        cable.carries = mtu
        # A host hands several segments over at once, and the length of those is not
        # looked at. Only while a port is picky must they come one by one.
        is_picky = any(each.carries < each.mtu for each in self._cables)
        segments = "1" if is_picky else str(MANY_SEGMENTS)
        for each in self._cables:
            with suppress(RingleaderError):  # the test may have removed the interface
                ip(each.host, "link", "set", each.device, "gso_max_segs", segments)

    def drop(self, name: Fault, rules: Iterable[tuple[Cable, str, str]]) -> None:
        """Drop what matches (cable, SENT or RECEIVED, match) until ``undrop(name)``."""
        if name in self._drops:
            return
        adding, removing = [], []
        for cable, way, match in rules:
            self._filter(cable.port)
            protocol, _, kind = match.partition(" u32 ")
            where = f"dev {cable.port} {way} {protocol} pref {next(self._numbers)}"
            action = f"action mirred egress redirect dev {VOID}"
            adding.append(f"filter add {where} u32 {kind} {action}")
            removing.append(f"filter delete {where}")
        tc_batch(self.name, adding)
        self._drops[name] = removing

    def undrop(self, name: Fault) -> None:
        """End a fault, if it is there."""
        tc_batch(self.name, self._drops.pop(name, []))

    def faults(self) -> list[Fault]:
        """The names under which something is dropped now."""
        return list(self._drops)

    def _filter(self, port: str) -> None:
        if port not in self._filtered:
            tc(self.name, "qdisc", "add", "dev", port, "clsact")
            self._filtered.add(port)

    def _add_bridge(self, bridge: str) -> None:
        ip(self.name, "link", "add", bridge, "type", "bridge")
        # Without snooping the bridge floods multicast, as a plain switch at home does.
        with suppress(RingleaderError):  # an option that small kernels leave out
            ip(
                self.name,
                "link",
                "set",
                bridge,
                "type",
                "bridge",
                "mcast_snooping",
                "0",
            )
        ip(self.name, "link", "set", bridge, "up")
