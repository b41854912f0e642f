"""Faults of the network and of machines beside kill -9, done to one member of a run.

A fault is begun, lasts for some seconds and is ended. The other members must go on as
far as they can; when it has ended, all must train together again.
"""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from ringleader.simulation.lan import VirtualHost, VirtualLan
from tests.kit.elastic_world import Member, World

PAUSE_S = 0.01
"""Time of a quantum, beside its computation."""
RESET_EVERY_S = 0.1
LAST_STEPS = 10
"""Steps that all members take together in the end, to be compared bit for bit."""
WIFI = (("RINGLEADER_RUN_SILENCE_MS", "12000"),)
"""Of ``ringleader run --survive --profile wifi``."""
FIND_ADDRESS = (("RINGLEADER_ADDRESS", ""),)
"""A member that finds its addresses by itself."""


class Harm(NamedTuple):
    """What a fault can act on."""

    world: World
    net: VirtualLan
    victim: Member

    @property
    def host(self) -> VirtualHost:
        """The machine of the victim."""
        return self.net.hosts[self.victim.index]


Act = Callable[[Harm], None]


def _nothing(_: Harm) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    seconds: float
    begin: Act
    end: Act
    repeat: Act = _nothing
    """Done again and again while the fault lasts."""
    rate: str = "1gbit"
    """Of all cables before the fault."""
    tools: tuple[str, ...] = ()
    """Programs that it needs."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of the environment of all members."""


def _stop(harm: Harm) -> None:
    harm.world.kill(harm.victim, signal.SIGSTOP)


def _go_on(harm: Harm) -> None:
    harm.world.kill(harm.victim, signal.SIGCONT)


def _cut(harm: Harm) -> None:
    harm.net.cut(harm.victim.index)


def _mend(harm: Harm) -> None:
    harm.net.mend(harm.victim.index)


def _sleep(harm: Harm) -> None:
    """Stop the process and the network card, as a suspended machine does."""
    _cut(harm)
    _stop(harm)


def _wake(harm: Harm) -> None:
    """Go on before the network is there again."""
    _go_on(harm)
    _mend(harm)


def _reset(harm: Harm) -> None:
    """Reset all TCP connections of a machine; a closed one sends RST to its peer."""
    command = ["ss", "--kill", "--tcp", "--numeric", "state", "connected"]
    subprocess.run(
        harm.host.command(command), check=True, capture_output=True, timeout=30
    )


def _new_address(harm: Harm) -> None:
    """Lose the cable and the address, as a machine does that changes its network."""
    _cut(harm)
    host = harm.host
    for words in (
        f"address delete {host.address}/16 dev eth0",
        f"address add 10.77.1.{host.number + 1}/16 dev eth0",
        "route add default dev eth0",
    ):
        command = ["ip", "-n", host.name, *words.split()]
        subprocess.run(command, check=True, capture_output=True, timeout=30)


def _rate(rate: str) -> Act:
    return lambda harm: harm.net.set_rate(harm.victim.index, rate)


FAULTS = {
    "stopped 3 s": Fault(3.0, _stop, _go_on),
    "stopped 30 s": Fault(30.0, _stop, _go_on),
    "asleep 30 s": Fault(30.0, _sleep, _wake),
    "cable cut 10 s": Fault(10.0, _cut, _mend),
    "mute 10 s": Fault(10.0, lambda h: h.net.mute(h.victim.index), _mend),
    "deaf 10 s": Fault(10.0, lambda h: h.net.deafen(h.victim.index), _mend),
    "resets for 5 s": Fault(5.0, _reset, _nothing, _reset, tools=("ss",)),
    "1 % of 1 Gbit/s": Fault(10.0, _rate("10mbit"), _rate("1gbit")),
    "1 % of 10 Mbit/s": Fault(10.0, _rate("100kbit"), _rate("10mbit"), rate="10mbit"),
    "roams 5 s": Fault(5.0, _cut, _mend),
    "roams 5 s on Wi-Fi": Fault(5.0, _cut, _mend, variables=WIFI),
    "roams 5 s to a new address": Fault(
        5.0, _new_address, _mend, variables=FIND_ADDRESS
    ),
}
"""By name. The cable of a machine is cut at the switch: nothing is reset."""


def missing_tool(name: str) -> str:
    """Return a program that the fault needs and this machine has not."""
    tools = FAULTS[name].tools
    return next((tool for tool in tools if shutil.which(tool) is None), "")


class Seen(NamedTuple):
    """What one fault has shown."""

    gap_s: float
    """Longest time without an applied update on another member, from the beginning of
    the fault until all trained together again."""
    back_s: float
    """From the end of the fault until every member had applied a step with all."""
    is_left_out: bool
    """Another member has applied a step without the victim."""
    steps_meanwhile: int
    """Of the others, while the fault lasted: of the one that made fewest."""
    samples: int
    """In the ledger, each of them once."""


class _Watch:
    """Steps of some members since a moment, as far as they were reported."""

    def __init__(self, members: Collection[Member], without: str, at_s: float) -> None:
        self._without = without
        self._last_s = dict.fromkeys(members, at_s)
        self.longest_s = 0.0
        """Without a step of one of them."""
        self.is_left_out = False
        """A step was made ``without`` another node."""

    def note(self) -> None:
        """Take in what was reported."""
        for member, last_s in self._last_s.items():
            for step in member.recent:
                if step.at_s > last_s:
                    self.longest_s = max(self.longest_s, step.at_s - last_s)
                    self._last_s[member] = last_s = step.at_s
                    self.is_left_out |= self._without not in step.members


def harm_one(world: World, net: VirtualLan, name: str, role: str) -> Seen:
    """Do a fault to the leader or to another member; raises what ``World`` does."""
    fault = FAULTS[name]
    for host in net.hosts:
        host.only_ipv4()  # otherwise one that changes its address keeps another
        net.set_rate(host.number, fault.rate)
    for index in range(world.size):
        world.start(index, joins=False, **dict(fault.variables))
    world.wait_complete()
    for member in world.alive.values():
        member.tell(pause_s=PAUSE_S)
    victim = _in_role(world, role)
    harm = Harm(world, net, victim)
    others = [m for m in world.alive.values() if m is not victim]
    before = {m: m.version for m in others}
    world.is_split = True  # until the end: members of one view are compared
    begun_s = time.monotonic()
    watch = _Watch(others, world.nodes[victim.index], begun_s)
    fault.begin(harm)
    _let_last(harm, fault, begun_s + fault.seconds, watch)
    meanwhile = min(m.version - before[m] for m in others)
    fault.end(harm)
    ended_s = time.monotonic()
    back_s = _wait_for_all(world, ended_s, watch) - ended_s
    return Seen(
        gap_s=round(watch.longest_s, 2),
        back_s=round(back_s, 2),
        is_left_out=watch.is_left_out,
        steps_meanwhile=meanwhile,
        samples=_compare(world),
    )


def _in_role(world: World, role: str) -> Member:
    """Return the leader, which is the first one of the ring, or the last one."""
    ring = next(iter(world.alive.values())).members
    return world.alive[world.nodes.index(ring[0 if role == "leader" else -1])]


def _let_last(harm: Harm, fault: Fault, until_s: float, watch: _Watch) -> None:
    while (now_s := time.monotonic()) < until_s:
        fault.repeat(harm)
        harm.world.handle(min(until_s - now_s, RESET_EVERY_S))
        watch.note()


def _wait_for_all(world: World, since_s: float, watch: _Watch) -> float:
    """Wait until every member has applied a step with all after a moment; return when
    the last of them did so first."""
    size = len(world.alive)
    first: dict[Member, float] = {}

    def have_all() -> bool:
        watch.note()
        for member in world.alive.values():
            for step in member.recent:
                if step.at_s > since_s and len(step.members) == size:
                    first.setdefault(member, step.at_s)
        return len(first) == len(world.alive) == size

    world.wait(have_all, 120.0, f"{size} members train together again")
    return max(first.values(), default=math.inf)


def _compare(world: World) -> int:
    """Let all take steps together, which are compared; check every ledger."""
    lives = world.alive.values()
    last = max(m.version for m in lives) + LAST_STEPS
    world.wait(
        lambda: all(m.version >= last and len(m.members) == world.size for m in lives),
        120.0,
        f"{LAST_STEPS} steps of all",
    )
    return max([world.check_ledger(member) for member in lives])
