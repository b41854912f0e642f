"""Snapshots and jobs of a cluster that does not exist, for the dashboard's tests."""

from __future__ import annotations

from typing import Any

from ringleader.dashboard.job_rows import JobNumbers, job_rows
from ringleader.dashboard.number_files import NumberPoint
from ringleader.dashboard.page_state import State, page_state
from ringleader.node.protocol.snapshot import (
    ClusterEvent,
    HealthCounts,
    NodeRow,
    Snapshot,
)
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import Accelerator, NodeProfile


def node_id(number: int) -> str:
    """The id of a machine."""
    digits = "abcdefghijklmnopqrstuvwxyz234567"
    return digits[number // 32] + digits[number % 32] + "a" * 50


def _profile(number: int) -> NodeProfile:
    gpu = Accelerator(f"GeForce RTX {number}", "cuda", 24 << 30)
    return NodeProfile(
        host=f"machine-{number}",
        system="Linux",
        system_version="Debian 13",
        architecture="x86_64",
        chip="Ryzen 7",
        physical_cores=8,
        logical_cores=16,
        total_ram_bytes=64 << 30,
        available_ram_bytes=32 << 30,
        accelerators=(gpu,) if number % 2 else (),
    )


def _links(number: int, size: int, moment: int) -> dict[str, LinkProfile]:
    """Links to the machines after this one: as one end has measured them."""
    return {
        node_id(other): LinkProfile(
            latency_s=1e-4 * (1 + (number * other) % 40),
            out_bytes_per_s=1e6 * (1 + (number * 7 + other * 13 + moment) % 1000),
            in_bytes_per_s=1e6 * (1 + (number * 3 + other * 5) % 1000),
        )
        for other in range(number + 1, size)
    }


def _row(number: int, size: int, num_jobs: int, moment: int) -> NodeRow:
    jobs = [f"job-{number % num_jobs}"] if num_jobs else []
    return NodeRow(
        node=node_id(number),
        name=f"machine {number}",
        health="suspect" if number % 17 == 16 else "healthy",
        is_leader=number == 0,
        is_here=number == 0,
        in_view=True,
        address=f"10.0.0.{number}:29471",
        latency_s=0.0 if number == 0 else 1e-3 * number,
        clock_ahead_s=0.0,
        version="0.1.0",
        profile=_profile(number),
        host=f"host {number}",
        links=_links(number, size, moment),
        jobs=jobs,
    )


def simulated_snapshot(size: int, num_jobs: int = 0, moment: int = 0) -> dict[str, Any]:
    """What the agent of the first of ``size`` machines would tell."""
    made = Snapshot(
        cluster="home",
        node=node_id(0),
        epoch=7,
        leader=node_id(0),
        ring=[node_id(number) for number in range(size)],
        nodes=[_row(number, size, num_jobs, moment) for number in range(size)],
        health=HealthCounts(
            total=size - 1,
            healthy=size - 1,
            suspect=0,
            dead=0,
            unknown=0,
            percentage=100.0,
            is_healthy=True,
        ),
        events=[
            ClusterEvent(time_s=1.7e9 + each, kind="view", text=f"members: {each}")
            for each in range(30)
        ],
        troubles=["link to machine 3: <b>no answer</b>"],
        rejected=0,
        pid=1,
        uptime_s=1.0,
    )
    return made.plain()


def simulated_load(number: int, moment: int = 0) -> dict[str, Any]:
    """The load of a machine, which differs at each moment."""
    return {
        "cpu_percent": float((number * 13 + moment * 7) % 101),
        "memory_used_bytes": (16 << 30) + (moment << 28),
        "memory_total_bytes": 64 << 30,
        "temperature_c": 40.0 + (number + moment) % 30,
        "battery_percent": 80.0 if number % 5 == 0 else None,
        "is_charging": False,
    }


def simulated_numbers(size: int, num_jobs: int, moment: int) -> dict[str, JobNumbers]:
    """A loss and a learning rate of each rank, one rank per machine."""
    found: dict[str, JobNumbers] = {}
    for number in range(size):
        job = found.setdefault(f"job-{number % num_jobs}", JobNumbers())
        points = [
            NumberPoint(1.7e9 + t, t, 0.25, {"loss": 9.0 / (t + 1), "lr": 0.1})
            for t in range(40 + moment)
        ]
        job.add(node_id(number), number // num_jobs, points)
    return found


def simulated_state(size: int, num_jobs: int = 0, moment: int = 0) -> State:
    """The state of the page; all machines are busier at the next moment."""
    snapshot = simulated_snapshot(size, num_jobs, moment)
    loads = {node_id(n): simulated_load(n, moment) for n in range(size)}
    numbers = simulated_numbers(size, num_jobs, moment) if num_jobs else {}
    return page_state(snapshot, loads, job_rows(snapshot["nodes"], numbers))
