"""Switch: the bridges of a virtual LAN, with faults injected at their ports.

Faults act at the switch, so the hosts can neither see nor undo them. A packet is
dropped by redirecting it to a bridge without ports: minimal kernels have no other
action for it.
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
"""tc hooks at a port: what a host sends is ingress there, what it receives egress."""

Fault = tuple[object, ...]
"""Name of a drop rule: the kind of fault, and where it is."""

EVERYTHING = "protocol all u32 match u32 0 0"
VOID = "void"
USUAL_MTU = 1500
MANY_SEGMENTS = 65535


@dataclass(slots=True, eq=False)
class Cable:
    """A cable from an interface of a host to a port of the switch."""

    host: str
    """Namespace of the host."""
    device: str
    port: str
    mac: str
    rate: str | None = None
    slow: dict[str, str] = field(default_factory=dict)
    """Rate of what this end sends, by the MAC of the receiver."""
    mtu: int = USUAL_MTU
    """MTU of the port without a fault."""
    carries: int = USUAL_MTU
    """Current MTU of the port."""


@dataclass(slots=True, eq=False)
class Switch:
    """A namespace with one bridge per network. Use it from one thread at a time."""

    name: str
    """Name of its namespace."""

    _bridges: dict[str, str] = field(default_factory=dict)
    _cables: list[Cable] = field(default_factory=list)
    _filtered: set[str] = field(default_factory=set)
    _drops: dict[Fault, list[str]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def build(self) -> None:
        """Create the namespace and the bridge that dropped packets are sent to."""
        run("ip", "netns", "add", self.name)
        self._add_bridge(VOID)

    def plug(self, host: str, device: str, network: str, number: int) -> Cable:
        """Connect a new interface of ``host`` to the bridge of ``network``."""
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
        """Add an unconnected cable to ``host`` and return the name of its interface."""
        serial = next(self._numbers)
        device, end = f"veth{serial:04x}", f"stub{serial}"
        run(
            *("ip", "link", "add", "name", device, "netns", host),
            *("type", "veth", "peer", "name", end, "netns", self.name),
        )
        ip(self.name, "link", "set", end, "up")
        return device

    def set_up(self, cable: Cable, *, is_up: bool) -> None:
        """Plug or unplug a cable at the switch; unplugging causes no reset."""
        ip(self.name, "link", "set", cable.port, "up" if is_up else "down")

    def set_rate(self, cable: Cable, rate: str | None) -> None:
        """Limit the rate of a cable in both directions."""
        # tc limits what leaves an interface: what the host sends at its own end, and
        # what it receives at the port of the switch.
        cable.rate = rate
        limit_rate(cable.host, cable.device, rate, cable.slow)
        limit_rate(self.name, cable.port, rate, {})

    def set_slow(self, cable: Cable, to: Cable, rate: str | None) -> None:
        """Limit the rate from one cable to another; None removes the limit."""
        cable.slow.pop(to.mac, None)
        if rate is not None:
            cable.slow[to.mac] = rate
        limit_rate(cable.host, cable.device, cable.rate, cable.slow)

    def set_mtu(self, cable: Cable, mtu: int) -> None:
        """Set the longest packet that the port carries; longer ones are dropped."""
        ip(self.name, "link", "set", cable.port, "mtu", str(mtu))
        cable.carries = mtu
        # A host hands over several segments at once (GSO), whose length the port does
        # not check. While a port has a reduced MTU, segments must come one by one.
        is_reduced = any(each.carries < each.mtu for each in self._cables)
        segments = "1" if is_reduced else str(MANY_SEGMENTS)
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
        """Remove a drop rule if it exists."""
        tc_batch(self.name, self._drops.pop(name, []))

    def faults(self) -> list[Fault]:
        """List the names of the current drop rules."""
        return list(self._drops)

    def _filter(self, port: str) -> None:
        if port not in self._filtered:
            tc(self.name, "qdisc", "add", "dev", port, "clsact")
            self._filtered.add(port)

    def _add_bridge(self, bridge: str) -> None:
        ip(self.name, "link", "add", bridge, "type", "bridge")
        # Without snooping the bridge floods multicast, like an unmanaged switch.
        with suppress(RingleaderError):  # minimal kernels lack this option
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
