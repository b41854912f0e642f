"""Measures how soon the members of an elastic run have their next view after a fault.

    python benchmarks/elastic_views.py kill --members 3 --runs 100
    python benchmarks/elastic_views.py silence --runs 10

The members are processes on the hosts of a virtual LAN (needs root and iproute2), or,
with ``--here``, on this machine without one. They run the control plane of a training
run and no training. ``kill`` ends the leader and another member in turn by SIGKILL;
``silence`` cuts the cable of one. Times are from the fault until the last survivor has
installed its view. Prints the results; ``--out FILE`` appends them as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.secret_value import Secret
from ringleader.simulation.lan import VirtualLan, lan
from ringleader.testing.run_member import MemberProcess, issue_credentials

PORT = 29600
CALM_S = 0.5
"""Between a view and the next fault, so that it meets a run at rest."""


class Members:
    """Members of one run, one on each host, the most senior first."""

    def __init__(self, folder: Path, size: int, net: VirtualLan | None) -> None:
        cluster = ClusterSecret(root=Secret(os.urandom(32)))
        self._issued = [issue_credentials(folder, cluster) for _ in range(size)]
        self._net = net
        self._addresses = [self._address(index) for index in range(size)]
        self.running: dict[int, MemberProcess] = {}
        """By host, in the order in which they were started."""

    def _address(self, index: int) -> str:
        if self._net is None:
            return f"127.0.0.1:{PORT + index}"
        return f"{self._net.hosts[index].address}:{PORT + index}"

    def start(self, index: int) -> None:
        """Start a member on a host."""
        others = [a for i, a in enumerate(self._addresses) if i != index]
        prefix = [] if self._net is None else self._net.hosts[index].command([])
        member = MemberProcess.launch(
            self._issued[index][0],
            "views",
            ",".join(others),
            port=PORT + index,
            prefix=prefix,
        )
        member.wait_for("up")
        self.running[index] = member

    def installed_s(self) -> float:
        """Wait for a view of all who run; return when the last one installed it."""
        nodes = [self._issued[index][1] for index in self.running]
        views = [m.wait_for_view(nodes, 60.0) for m in self.running.values()]
        assert len({view["counter"] for view in views}) == 1, views
        return max(view["at_s"] for view in views)

    def close(self) -> None:
        """End all members."""
        for member in self.running.values():
            member.kill()
            member.close()


@contextmanager
def members(size: int, *, is_here: bool) -> Iterator[tuple[Members, VirtualLan | None]]:
    """Yield a run of ``size`` members that have one view."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        net = None if is_here else stack.enter_context(lan(hosts=size))
        made = Members(folder, size, net)
        stack.callback(made.close)
        for index in range(size):
            made.start(index)
        made.installed_s()
        time.sleep(CALM_S)
        yield made, net


def measure_kills(options: argparse.Namespace) -> dict[str, object]:
    """Kill the leader and the most junior member in turn; start each again."""
    took: dict[str, list[float]] = {"leader": [], "other": []}
    joins = []
    with members(options.members, is_here=options.here) as (run, _):
        for number in range(options.runs):
            role = ("leader", "other")[number % 2]
            victim = list(run.running)[0 if role == "leader" else -1]
            process = run.running.pop(victim)
            at_s = process.kill()
            took[role].append(run.installed_s() - at_s)
            process.close()
            run.start(victim)
            at_s = time.monotonic()
            joins.append(run.installed_s() - at_s)
            time.sleep(CALM_S)
    both = took["leader"] + took["other"]
    return {
        "leader killed": spread(took["leader"]),
        "other killed": spread(took["other"]),
        "any killed": spread(both),
        "started again, after its start": spread(joins),
    }


def measure_silence(options: argparse.Namespace) -> dict[str, object]:
    """Cut the cable of the leader and of another member; mend it again."""
    took, back = [], []
    with members(options.members, is_here=False) as (run, net):
        assert net is not None
        for number in range(options.runs):
            victim = list(run.running)[0 if number % 2 == 0 else -1]
            process = run.running.pop(victim)
            net.cut(victim)
            at_s = time.monotonic()
            took.append(run.installed_s() - at_s)
            run.running[victim] = process
            net.mend(victim)
            at_s = time.monotonic()
            back.append(run.installed_s() - at_s)
            run.running = dict(sorted(run.running.items()))
            time.sleep(CALM_S)
    return {"cable cut": spread(took), "one view after it was mended": spread(back)}


def spread(values: list[float]) -> dict[str, float]:
    """Return count, median, percentiles and maximum of a list of seconds."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)

    return {
        "count": len(ordered),
        "median": round(statistics.median(ordered), 4),
        "p95": at(0.95),
        "p99": at(0.99),
        "worst": round(ordered[-1], 4),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("kill", "silence"))
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--here", action="store_true", help="without a virtual LAN")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    measure = measure_kills if options.what == "kill" else measure_silence
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "what": options.what,
        "members": options.members,
        "network": "loopback" if options.here else "virtual LAN",
        "cores": os.cpu_count(),
        "load": round(load_before, 1),
        "seconds": measure(options),
    }
    print(json.dumps(result, indent=2))
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
