"""One rank on one host of a test LAN: forms a group, does what it is told, reports.

Its argument is the JSON of {"rank": 0, "peers": [...], "tasks": [...]}, if links are to
be encrypted with "credentials", the path of a file, and if they are to have several
connections with "connections". It prints one JSON line per task.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch

import ringleader
from ringleader.groups.group import handle_of
from ringleader.transport.socket_link import SocketLink

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
"""Counter of the bytes that this host, a network namespace, has sent."""


def time_all_reduce(group: ringleader.Group, task: dict[str, Any]) -> dict[str, Any]:
    """Best seconds of one fixed algorithm: what the network allows; value checked.

    With ``enough_s`` the first round will do that takes no rank longer than that.
    """
    tensor = torch.zeros(task["bytes"] // 4)
    times = []
    sent_before = int(SENT.read_text())
    for _ in range(task["rounds"]):
        tensor.fill_(group.rank + 1)
        group.barrier()
        started_s = time.perf_counter()
        group.all_reduce(
            tensor, algorithm=task.get("algorithm"), codec=task.get("codec")
        )
        times.append(time.perf_counter() - started_s)
        if "enough_s" in task:
            slowest_s = torch.tensor([times[-1]], dtype=torch.float64)
            group.all_reduce(slowest_s, "max")
            times[-1] = float(slowest_s)
            if times[-1] <= task["enough_s"]:
                break
    want = group.size * (group.size + 1) / 2
    tolerance = 0.01 * want if task.get("codec") else 0.0
    right = bool(((tensor - want).abs() <= tolerance).all())
    group.barrier()
    sent = int(SENT.read_text()) - sent_before
    return {"seconds": min(times), "right": right, "sent": sent}


def describe(group: ringleader.Group, _task: dict[str, Any]) -> dict[str, Any]:
    """Return the links of the group: kind, speed as measured, buffer of the socket."""
    links = {str(p): kind for p, kind in group.links().items()}
    choice = group.choice("all_reduce", 4 << 20)
    network, bulk = handle_of(group).network, handle_of(group).mesh.bulk
    costs = network.links[group.rank]
    sockets = {p: link.sock for p, link in bulk.items() if isinstance(link, SocketLink)}
    return {
        "links": links,
        "hosts": network.hosts,
        "choice": choice[0],
        "bandwidths": {p: cost.bandwidth for p, cost in enumerate(costs) if cost},
        "send_buffers": {
            p: sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            for p, sock in sockets.items()
        },
    }


def wait_for_fault(group: ringleader.Group, task: dict[str, Any]) -> dict[str, Any]:
    """All-reduce until it fails; who is blamed, and how long the last call took."""
    print(json.dumps({"ready": True}), flush=True)  # noqa: T201
    tensor = torch.zeros(100_000)
    while True:
        started_s = time.monotonic()
        try:
            group.all_reduce(tensor, timeout_s=task["timeout_s"])
        except ringleader.RingleaderError as exc:
            return {
                "error": type(exc).__name__,
                "peer": getattr(exc, "peer", None),
                "text": str(exc),
                "seconds": time.monotonic() - started_s,
            }


TASKS = {"time": time_all_reduce, "describe": describe, "fault": wait_for_fault}


def main() -> None:
    """Form the group and do the tasks in order."""
    torch.set_num_threads(1)
    job = json.loads(sys.argv[1])
    os.environ["RINGLEADER_CREDENTIALS"] = job.get("credentials", "")
    os.environ["RINGLEADER_PLAINTEXT"] = "0" if "credentials" in job else "1"
    transport = job.get("transport", "auto")
    connections = job.get("connections", 1)
    with ringleader.group(
        job["peers"],
        job["rank"],
        transport=transport,
        connections=connections,
        timeout_s=60,
    ) as group:
        for task in job["tasks"]:
            result = TASKS[task["do"]](group, task)
            print(json.dumps(result), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
