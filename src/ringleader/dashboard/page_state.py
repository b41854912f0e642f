"""``page_state``: what the dashboard shows, from what an agent knows. Pure.

The page, ``ringleader top`` and the tests see the cluster through this function alone.
The result is sections of rows, so that changes can be sent row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ringleader.ids import NodeId, tell_apart

Row = dict[str, Any]
State = dict[str, dict[str, Row]]

MAX_EVENTS = 32
MAX_ROUNDED = 1 << 14
"""Rounded values that are kept: three of each link among a hundred machines."""
MAX_TROUBLES = 16
SHARED_MEMORY = "memory"
"""Kind of a link between machines that share memory; it has no numbers."""
LINK_COLUMNS = ("latency_s", "there_bytes_per_s", "back_bytes_per_s", "kind")
SECTIONS = ("cluster", "machines", "links", "jobs", "events", "troubles")


def page_state(
    snapshot: Mapping[str, Any],
    loads: Mapping[str, Mapping[str, Any]],
    jobs: Sequence[Mapping[str, Any]] = (),
) -> State:
    """Return the sections of the page.

    ``snapshot`` is an agent's (``Snapshot.plain()``), ``loads`` the load of each node
    that told it, ``jobs`` the rows of jobs.
    """
    nodes = snapshot["nodes"]
    names = machine_names(nodes)
    return {
        "cluster": {"": _cluster(snapshot, names)},
        "machines": {
            row["node"]: _machine(row, names, loads.get(row["node"]))
            for row in _in_ring_order(snapshot)
        },
        "links": dict(_links(nodes)),
        "jobs": {str(job["id"]): dict(job) for job in jobs},
        "events": {
            f"{event['time_s']:.6f} {event['kind']}": _event(event)
            for event in snapshot.get("events", [])[-MAX_EVENTS:]
        },
        "troubles": {
            text: {"text": text} for text in snapshot["troubles"][:MAX_TROUBLES]
        },
    }


def machine_names(nodes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the name of each node, with its id where two have the same."""
    found = tell_apart({NodeId(row["node"]): row["name"] for row in nodes})
    return {str(node): name for node, name in found.items()}


def _in_ring_order(snapshot: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    ring = {node: index for index, node in enumerate(snapshot["ring"])}
    return sorted(snapshot["nodes"], key=lambda row: ring.get(row["node"], len(ring)))


def _cluster(snapshot: Mapping[str, Any], names: Mapping[str, str]) -> Row:
    return {
        "name": snapshot["cluster"],
        "here": names.get(snapshot["node"], ""),
        "leader": names.get(snapshot["leader"], ""),
        "epoch": snapshot["epoch"],
        "ring": [node for node in snapshot["ring"] if node in names],
        "coordinator": snapshot.get("coordinator", ""),
    }


def _machine(
    row: Mapping[str, Any], names: Mapping[str, str], load: Mapping[str, Any] | None
) -> Row:
    made: Row = {
        "name": names[row["node"]],
        "health": row["health"],
        "is_leader": row["is_leader"],
        "is_here": row["is_here"],
        "in_view": row["in_view"],
        "address": row["address"],
        "latency_s": _round(row["latency_s"]),
        "jobs": list(row["jobs"]),
        "waiting_jobs": list(row.get("waiting_jobs", [])),
        "version": row["version"],
        "load": dict(load) if load is not None else None,
    }
    profile = row["profile"]
    if profile is not None:
        made["chip"] = profile["chip"]
        made["cores"] = profile["physical_cores"]
        made["memory_bytes"] = profile["total_ram_bytes"]
        made["system"] = f"{profile['system']} {profile['system_version']}".strip()
        made["devices"] = [
            {"name": each["name"], "memory_bytes": each["memory_bytes"]}
            for each in profile.get("accelerators", ())
        ]
    return made


def _links(nodes: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, Row]]:
    """Yield for each machine a row with its links to the machines after it.

    Machines are in the order of their ids. A row has a list for each kind of number,
    because fifty machines have 1,225 links and the names of their numbers and of their
    ends would be most of what a page loads. What is not measured is None.
    """
    rows = sorted(nodes, key=lambda row: str(row["node"]))
    for number, one in enumerate(rows):
        links = [_link(one, other) for other in rows[number + 1 :]]
        if any(link[-1] is not None for link in links):
            columns = zip(*links, strict=True)
            yield one["node"], dict(zip(LINK_COLUMNS, map(list, columns), strict=True))


_Link = tuple[float | None, int | None, int | None, str | None]
_UNKNOWN_LINK: _Link = (None, None, None, None)


def _link(one: Mapping[str, Any], other: Mapping[str, Any]) -> _Link:
    if one.get("host") and one.get("host") == other.get("host"):
        return (None, None, None, SHARED_MEMORY)
    link = one["links"].get(other["node"])
    back = other["links"].get(one["node"])
    if link is None and back is None:
        return _UNKNOWN_LINK
    there, here = "out_bytes_per_s", "in_bytes_per_s"
    if link is None:
        link, there, here = back, here, there
    return (
        _round(link["latency_s"]),
        int(_round(link[there]) or 0),
        int(_round(link[here]) or 0),
        str(link.get("kind", "")),
    )


def find_link(state: Mapping[str, Mapping[str, Any]], one: str, other: str) -> Row:
    """Return the numbers of the link from one machine to another.

    They are named as in ``LINK_COLUMNS``; ``kind`` is None if it is not measured.
    """
    first, second = sorted((one, other))
    later = [node for node in sorted(state["machines"]) if node > first]
    row = state["links"].get(first)
    if row is None or second not in later:
        return dict.fromkeys(LINK_COLUMNS)
    index = later.index(second)
    found = {name: row[name][index] for name in LINK_COLUMNS}
    if first != one:
        there, back = "there_bytes_per_s", "back_bytes_per_s"
        found[there], found[back] = found[back], found[there]
    return found


def _event(event: Mapping[str, Any]) -> Row:
    return {
        "time_s": round(event["time_s"], 1),
        "kind": event["kind"],
        "text": event["text"],
    }


@lru_cache(MAX_ROUNDED)
def _round(value: float | None) -> float | None:
    """Keep three digits: noise in the others would change every row every second.

    Most values are those of a second ago, and to look one up is five times faster.
    """
    return None if value is None else float(f"{value:.3g}")
