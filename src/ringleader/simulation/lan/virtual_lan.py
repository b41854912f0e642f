"""VirtualLan: hosts around one switch, and the faults between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations

from ringleader.errors import ConfigError
from ringleader.simulation.lan.ip_command import can_make_lan, new_prefix, remove, stale
from ringleader.simulation.lan.switch import (
    EVERYTHING,
    RECEIVED,
    SENT,
    USUAL_MTU,
    Cable,
    Switch,
)
from ringleader.simulation.lan.virtual_host import VirtualHost

MAX_HOSTS = 200
"""Host addresses are 10.77.0.1 and up; the last byte counts the hosts."""

# IPv6 neighbour discovery uses multicast and still works, as on Wi-Fi access points
# that block the multicast of applications: for IPv6, only UDP is dropped.
_MULTICAST = (
    "protocol ip u32 match ip dst 224.0.0.0/4",
    "protocol ipv6 u32 match ip6 protocol 17 0xff match ip6 dst ff00::/8",
)


@dataclass(frozen=True, slots=True)
class VirtualLan:
    """Hosts around one switch; ``lan`` creates and removes it.

    Hosts are named by their index in ``hosts``. Faults of a cable concern ``eth0``
    unless another interface is named. Not thread-safe.
    """

    switch: str
    """Name of the namespace of the switch."""

    hosts: list[VirtualHost]
    _switch: Switch
    _cut: set[tuple[int, str]] = field(default_factory=set)

    # -- one cable ---------------------------------------------------------------

    def cut(self, index: int, device: str = "eth0") -> None:
        """Unplug a cable at the switch: packets vanish, connections see no reset."""
        self._switch.set_up(self._cable(index, device), is_up=False)
        self._cut.add((index, device))

    def mute(self, index: int, device: str = "eth0") -> None:
        """Drop what a host sends; it still receives."""
        rule = (self._cable(index, device), SENT, EVERYTHING)
        self._switch.drop(("mute", index, device), [rule])

    def deafen(self, index: int, device: str = "eth0") -> None:
        """Drop what a host would receive; it can still send."""
        rule = (self._cable(index, device), RECEIVED, EVERYTHING)
        self._switch.drop(("deafen", index, device), [rule])

    def no_multicast(self, index: int, device: str = "eth0") -> None:
        """Drop multicast from and to a host, like guest Wi-Fi and some switches."""
        cable = self._cable(index, device)
        rules = [
            (cable, way, match) for way in (SENT, RECEIVED) for match in _MULTICAST
        ]
        self._switch.drop(("no_multicast", index, device), rules)

    def drop_large(self, index: int, over: int, device: str = "eth0") -> None:
        """Silently drop packets of more than ``over`` bytes, both ways.

        Connections that are already open may continue: they hand over many segments
        at once, whose length is not checked.
        """
        if not 68 <= over < USUAL_MTU:
            raise ConfigError(f"lan: over must be 68 to {USUAL_MTU - 1}, got {over}")
        self._switch.set_mtu(self._cable(index, device), over)

    def mend(self, index: int, device: str = "eth0") -> None:
        """End all faults of a cable."""
        where, cable = (index, device), self._cable(index, device)
        if where in self._cut:
            self._cut.discard(where)
            self._switch.set_up(cable, is_up=True)
        if cable.carries < cable.mtu:
            self._switch.set_mtu(cable, cable.mtu)
        for fault in ("mute", "deafen", "no_multicast"):
            self._switch.undrop((fault, *where))

    # -- between hosts -----------------------------------------------------------

    def partition(self, islands: Sequence[Sequence[int]]) -> None:
        """Let hosts reach only those of their own island, until ``heal``.

        Every host must be on exactly one island. A second partition replaces the first.
        """
        named = sorted(index for island in islands for index in island)
        if named != list(range(len(self.hosts))):
            raise ConfigError(
                f"lan: islands {islands}: each host must be on exactly one"
            )
        rules = [
            (here, RECEIVED, f"protocol all u32 match ether src {there.mac}")
            for one, other in combinations(islands, 2)
            for a in one
            for b in other
            for i, j in ((a, b), (b, a))
            for here in self.hosts[i].cables()
            for there in self.hosts[j].cables()
        ]
        new = ("partition", tuple(map(tuple, islands)))
        before = self._partitions()
        self._switch.drop(
            new, rules
        )  # before undropping, so that the LAN is never whole in between
        for old in before:
            if old != new:
                self._switch.undrop(old)

    def heal(self) -> None:
        """End all faults of all cables and the partition.

        Rates, interfaces and blocked ports are not faults and stay.
        """
        for old in self._partitions():
            self._switch.undrop(old)
        for host in self.hosts:
            for cable in host.cables():
                self.mend(host.number, cable.device)

    def _partitions(self) -> list[tuple[object, ...]]:
        return [fault for fault in self._switch.faults() if fault[0] == "partition"]

    # -- rates -------------------------------------------------------------------

    def set_rate(self, index: int, rate: str | None, device: str = "eth0") -> None:
        """Limit the rate of a cable, both ways; None removes the limit."""
        self._switch.set_rate(self._cable(index, device), rate)

    def slow_pair(self, a: int, b: int, rate: str | None) -> None:
        """Limit the rate between two hosts, each way; None removes the limit."""
        if a == b:
            raise ConfigError(f"lan: slow_pair needs two hosts, got host {a} twice")
        here, there = self._cable(a, "eth0"), self._cable(b, "eth0")
        self._switch.set_slow(here, there, rate)
        self._switch.set_slow(there, here, rate)

    def _cable(self, index: int, device: str) -> Cable:
        if not 0 <= index < len(self.hosts):
            raise ConfigError(f"lan: no host {index}; there are {len(self.hosts)}")
        return self.hosts[index].cable(device)


@contextmanager
def lan(hosts: int = 3, *, rate: str | None = None) -> Iterator[VirtualLan]:
    """Create a LAN; both directions of every host are limited to ``rate`` (tc's units).

    It is removed on exit. What a killed process left behind is removed by the next one
    that creates a LAN.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"lan: needs 1 to {MAX_HOSTS} hosts, got {hosts}")
    is_possible, reason = can_make_lan()
    if not is_possible:
        raise ConfigError(f"lan: cannot be created here: {reason}")
    remove(stale())
    prefix = new_prefix()
    switch = Switch(f"{prefix}-switch")
    members = [
        VirtualHost(
            f"{prefix}-host{i}", f"10.77.0.{i + 1}", f"fd77::{i + 1:x}", i, switch
        )
        for i in range(hosts)
    ]
    net = VirtualLan(switch.name, members, switch)
    try:
        switch.build()
        for host in members:
            host.build()
            if rate is not None:
                net.set_rate(host.number, rate)
        yield net
    finally:
        for host in members:
            host.kill_all()
        remove([switch.name, *(host.name for host in members)])
