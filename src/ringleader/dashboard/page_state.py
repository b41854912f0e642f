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
    """Yield a row for each measured pair, and for pairs that share memory.

    The key is ``A B`` with A before B in the list of nodes.
    """
    rows = list(nodes)
    for number, one in enumerate(rows):
        for other in rows[number + 1 :]:
            link = _link(one, other)
            if link is not None:
                yield f"{one['node']} {other['node']}", link


def _link(one: Mapping[str, Any], other: Mapping[str, Any]) -> Row | None:
    if one.get("host") and one.get("host") == other.get("host"):
        return {"is_shared_memory": True}
    link = one["links"].get(other["node"])
    back = other["links"].get(one["node"])
    if link is None and back is None:
        return None
    there, here = "out_bytes_per_s", "in_bytes_per_s"
    if link is None:
        link, there, here = back, here, there
    return {
        "latency_s": _round(link["latency_s"]),
        "there_bytes_per_s": _round(link[there]),
        "back_bytes_per_s": _round(link[here]),
        "kind": str(link.get("kind", "")),
    }


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
