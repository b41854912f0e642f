"""Rules about this machine itself: cluster, interfaces, ports, limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.discovery.multicast import PORT
from ringleader.doctor.facts import DialOutcome, Facts
from ringleader.doctor.finding import Code, Finding, Severity
from ringleader.topology.interface_kind import InterfaceKind
from ringleader.topology.interfaces import describe_refused

FREE_DESCRIPTORS = 128
"""An agent, a worker and its links to a dozen machines may need as many at once."""

SHARED_BYTES = 128 << 20
"""Two ranks map 40 MiB; a DataLoader with workers needs more. Docker gives 64 MiB."""


def machine(facts: Facts) -> Iterator[Finding]:
    """Check cluster, interfaces, ports, descriptors, shared memory and agent."""
    yield from _no_cluster(facts)
    yield from _no_interface(facts)
    yield from _ports(facts)
    yield from _descriptors(facts)
    yield from _shared_memory(facts)
    yield from _agent(facts)


def _no_cluster(facts: Facts) -> Iterator[Finding]:
    if not facts.cluster:
        text = f"{facts.name} is in no cluster yet, so no node will talk to it."
        mend = "Run 'ringleader init' here, or 'ringleader join' with your phrase."
        yield Finding(Code.NO_CLUSTER, text, mend)


def _no_interface(facts: Facts) -> Iterator[Finding]:
    if facts.chosen:
        return
    virtual = (InterfaceKind.VPN, InterfaceKind.VIRTUAL)
    others = [
        each
        for each, _ in facts.refused
        if each.kind in virtual and each.is_up and not each.name.startswith("veth")
    ]
    text = f"{facts.name} has no network interface that leads to a LAN"
    if why := describe_refused(facts.refused):
        text += f": {why}"
    mend = "Connect it to the network of the other machines, by cable or Wi-Fi."
    if others:
        mend += (
            f" If the other machines really are behind {others[0].name}, select it: "
            f"ringleader run --interface {others[0].name}, or RINGLEADER_INTERFACES."
        )
    yield Finding(Code.ONLY_VIRTUAL, f"{text}.", mend)


def _ports(facts: Facts) -> Iterator[Finding]:
    for taken in facts.taken:
        who = f"{taken.holder} has it" if taken.holder else taken.text
        text = f"{taken.protocol.upper()} port {taken.port} of {facts.name}: {who}."
        mend = f"Stop that program, or choose another port than {taken.port}."
        if taken.port == PORT:
            text += " Without it no other node can be found by multicast."
            mend = (
                "Stop that program or have it share the port (avahi and Bonjour do); "
                "or name a machine that all reach: --peers HOST."
            )
        yield Finding(Code.PORT_TAKEN, text, mend)


def _descriptors(facts: Facts) -> Iterator[Finding]:
    low = [d for d in facts.descriptors if d.limit - d.used < FREE_DESCRIPTORS]
    text = "; ".join(f"{d.whose}: {d.used} of {d.limit} in use" for d in low)
    dials = [d for c in facts.candidates for d in c.dials]
    if not low and any(d.outcome is DialOutcome.NO_DESCRIPTOR for d in dials):
        text = "the system gave the doctor none"
    if text:
        yield Finding(
            Code.FEW_DESCRIPTORS,
            f"{facts.name} is short of file descriptors ({text}); every link and "
            f"every file needs one, and {FREE_DESCRIPTORS} should be free.",
            "Raise the limit: 'ulimit -n 4096' in the shell that starts ringleader, "
            "permanently in /etc/security/limits.conf ('launchctl limit' on a Mac); "
            "or end the program that holds so many.",
        )


def _shared_memory(facts: Facts) -> Iterator[Finding]:
    memory = facts.memory
    if memory is None:
        return
    text = memory.trouble
    if not text and memory.path and memory.free_bytes < SHARED_BYTES:
        text = (
            f"only {memory.free_bytes >> 20} MiB of {memory.total_bytes >> 20} MiB "
            f"are free in {memory.path}"
        )
    if text:
        yield Finding(
            Code.LITTLE_SHARED_MEMORY,
            f"{facts.name}: {text}. Workers of one machine exchange tensors, and data "
            f"loaders pass batches, through shared memory; {SHARED_BYTES >> 20} MiB "
            "should be free.",
            f"Remove old files in {memory.path or 'shared memory'}, or make it larger: "
            "'docker run --shm-size 2g', or 'mount -o remount,size=2g /dev/shm'.",
            Severity.WARNING,
        )


def _agent(facts: Facts) -> Iterator[Finding]:
    if facts.agent_trouble:
        yield Finding(
            Code.UNREACHABLE,
            f"An agent runs on {facts.name} and does not answer: "
            f"{facts.agent_trouble}.",
            "The machine may be very busy, or the agent stopped. End the command that "
            "started it and start it again.",
        )
