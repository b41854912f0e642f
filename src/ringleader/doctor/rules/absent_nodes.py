"""Rules: which nodes should be here and are not? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.doctor.facts import Facts
from ringleader.doctor.finding import Code, Finding, Severity
from ringleader.node.protocol.snapshot import ClusterEvent, Snapshot

RECENT_S = 600.0
"""How long the loss of a node is reported, unless it is back."""


def lost_nodes(facts: Facts) -> Iterator[Finding]:
    """Find nodes that agents have lost in the last minutes and that are not back."""
    back = {d.node for c in facts.candidates for d in c.reached} | facts.own
    reported: set[str] = set()
    for snapshot, now_s in _snapshots(facts):
        healthy = {r.node for r in snapshot.nodes if r.in_view and r.health != "dead"}
        for event in reversed(snapshot.events):
            is_recent = now_s - event.time_s < RECENT_S
            if event.kind != "lost" or not is_recent or event.node in reported:
                continue
            if event.node not in healthy and event.node not in back:
                reported.add(event.node)
                yield _lost(snapshot, event, now_s)


def _snapshots(facts: Facts) -> Iterator[tuple[Snapshot, float]]:
    """Yield what agents know, each with the time on its own clock."""
    for snapshot in facts.agents:
        yield snapshot, facts.now_s
    for dial in (dial for c in facts.members for dial in c.reached):
        if dial.snapshot is not None:
            yield dial.snapshot, facts.now_s + (dial.clock_ahead_s or 0.0)


def _lost(snapshot: Snapshot, event: ClusterEvent, now_s: float) -> Finding:
    who = next((row.name for row in snapshot.nodes if row.is_here), "An agent")
    ago_s = max(0.0, now_s - event.time_s)
    text = f"The agent of {who} reports, {ago_s:.0f} s ago: {event.text}."
    mend = (
        "Look at that machine: is it on, awake and on the network, and what did "
        "'ringleader run' print there last? Start it again there; if it was switched "
        "off on purpose, nothing is to be done."
    )
    return Finding(Code.LOST_NODE, text, mend, Severity.WARNING)


def lonely_jobs(facts: Facts) -> Iterator[Finding]:
    """Find jobs that wait for machines of which there is no trace.

    Nobody may have started them, but a network that keeps machines apart looks the
    same from here.
    """
    if any(not candidate.is_here for candidate in facts.candidates):
        return  # a trace, and reported by another rule if something is wrong with it
    rows = [row for shot in facts.agents for row in shot.nodes if row.is_here]
    jobs = sorted({job for row in rows for job in row.waiting_jobs})
    is_alone = all(len(shot.ring) < 2 for shot in facts.agents)
    if not jobs or not is_alone or not facts.chosen:
        return
    used = {shot.coordinator for shot in facts.agents if shot.coordinator}
    if used:
        if not any(shot.coordinator_trouble for shot in facts.agents):
            yield _alone_at_coordinator(facts, jobs, ", ".join(sorted(used)))
        return
    others = len({host for r in facts.multicast for host in r.heard | r.answered})
    heard = (
        f"Multicast of {others} other devices arrives, so it is not blocked everywhere"
        if others
        else "No multicast of any other device arrives either: the network may block "
        "it, or keep its clients apart"
    )
    text = (
        f"Job {', '.join(jobs)} on {facts.name} waits for other machines, and there "
        f"is no trace of another node of {facts.cluster}. {heard}."
    )
    mend = (
        "Start 'ringleader run' on the other machines. If it runs there, run "
        "'ringleader doctor --peer ADDRESS' here with the address of one of them, "
        "which tells dead multicast, isolated clients and a firewall apart. On Wi-Fi "
        "turn off 'client isolation' ('AP isolation', 'guest network')."
    )
    yield Finding(Code.NO_OTHER_NODE, text, mend)


def _alone_at_coordinator(facts: Facts, jobs: list[str], address: str) -> Finding:
    text = (
        f"Job {', '.join(jobs)} on {facts.name} waits for other machines, and the "
        f"coordinator {address} answers, but no other node of {facts.cluster} that can "
        "be reached is registered there."
    )
    mend = (
        f"Start 'ringleader run --coordinator {address}' on the other machines, with "
        "this address and in this cluster. If it runs there, run 'ringleader doctor "
        "--peer ADDRESS' here with the address of one of them: nodes connect to each "
        "other, not only to the coordinator."
    )
    return Finding(Code.NO_OTHER_NODE, text, mend)
