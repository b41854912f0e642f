"""A machine joins an elastic run of 25 M parameters at 1 Gbit/s: what do others notice?

    .venv/bin/python benchmarks/elastic_join.py --times 5      # as root

Members and the newcomer are new interpreters in network namespaces. The newcomer
imports, follows the run, is admitted, trains for some steps and is killed; again and
again. Steps of the others are told apart: before; while the newcomer imports, which
here takes a core from them and on a machine of its own would not; while it joins, from
its call of ``ringleader.elastic`` to the end of its first step; and after that. As a
control, a process joins nothing and only uses as much of a core as the newcomer did.

Times of a newcomer, from its call of ``ringleader.elastic``:

    level_s       it has caught up with the run, and asks for admission
    admitted_s    it is a member: it has installed a view with all others. That is the
                  bar "joined"
    returned_s    ``ringleader.elastic`` has returned: its state is that of the others
    first_step_s  the end of its first step, in which it may have had no work
    worked_s      the end of the first step that it computed a part of
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from elastic_join_member import CLASSES, LAYERS, WIDTH
from machine import describe
from results_file import bar, dated, save

from ringleader.identity import join_phrase
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.settings.run import RunSettings
from ringleader.simulation.lan import VirtualLan, lan
from ringleader.testing.run_member import issue_credentials

MEMBER = Path(__file__).with_name("elastic_join_member.py")
PORT = 29_660
LIMIT_S = 600.0
MEDIAN_BAR, LARGEST_BAR, EXTRA_S, ADMITTED_BAR_S = 1.2, 1.5, 0.3, 10.0

Report = dict[str, Any]


@dataclass(eq=False)
class Process:
    """A process on a host, and what it has reported."""

    host: int
    popen: subprocess.Popen[str]
    reports: list[Report] = field(default_factory=list)

    def read(self) -> None:
        """Collect reports until it ends."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.reports.append(json.loads(line))

    def of(self, event: str) -> list[Report]:
        """Return the reports of one kind."""
        return [r for r in self.reports if r["event"] == event]

    def steps(self) -> list[tuple[float, float]]:
        """Return begin and end of every step."""
        return list(pairwise(r["at"] for r in self.of("step")))


class Bench:
    """The members of one run, and machines that join it."""

    def __init__(self, net: VirtualLan, folder: Path, options: list[str]) -> None:
        self._net = net
        self._options = options
        self._size = len(net.hosts) - 1
        cluster = ClusterSecret.from_phrase(join_phrase.new(), name="join")
        self._files = [issue_credentials(folder, cluster)[0] for _ in net.hosts]
        self.members: list[Process] = []

    def start(self) -> None:
        """Start the members and wait until they train."""
        self.members = [self._start(host, joins=False) for host in range(self._size)]
        self.wait(lambda: all(len(m.steps()) > 3 for m in self.members), "steps")

    def _start(self, host: int, *, joins: bool, burn: tuple[str, ...] = ()) -> Process:
        addresses = [each.address for each in self._net.hosts]
        peers = [f"{a}:{PORT}" for i, a in enumerate(addresses) if i != host]
        run = RunSettings(
            job="join",
            is_joiner=joins,
            credentials=str(self._files[host]),
            peers=",".join(peers),
            port=PORT,
            size=1 if joins else self._size,
        )
        own = {
            "RINGLEADER_ADDRESS": addresses[host],
            "RINGLEADER_NAME": f"m{host}",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(MEMBER.parent), *sys.path]),
        }
        full = str(self._size + 1)
        argv = [sys.executable, str(MEMBER), "--full", full, *self._options, *burn]
        popen = self._net.hosts[host].popen(
            argv,
            env={**os.environ, **run.environment(), **own},
            stdout=subprocess.PIPE,
            text=True,
        )
        process = Process(host, popen)
        threading.Thread(target=process.read, daemon=True).start()
        return process

    def wait(self, until: Callable[[], object], what: str) -> None:
        """Wait for something that the processes report."""
        deadline_s = time.monotonic() + LIMIT_S
        while not until():
            dead = [m.host for m in self.members if m.popen.poll() is not None]
            if dead or time.monotonic() > deadline_s:
                raise SystemExit(f"no {what} within {LIMIT_S:g} s; ended: {dead}")
            time.sleep(0.02)

    def rest(self, steps: int) -> None:
        """Let all members take some steps."""
        wanted = [len(m.steps()) + steps for m in self.members]
        self.wait(
            lambda: all(
                len(m.steps()) >= n for m, n in zip(self.members, wanted, strict=True)
            ),
            "further steps",
        )

    # -- one join --------------------------------------------------------------------

    def join(self, steps: int) -> dict[str, Any]:
        """Let the newcomer join and train a while; kill it; return what was seen."""
        quiet_s = time.monotonic()
        self.rest(steps)
        newcomer = self._start(self._size, joins=True)
        self.wait(lambda: newcomer.of("joining"), "newcomer")
        before = self._counters()
        self.wait(lambda: newcomer.of("returned"), "admission")
        after = self._counters()
        self.wait(lambda: len(newcomer.steps()) >= steps, "steps of the newcomer")
        killed_s = time.monotonic()
        newcomer.popen.kill()
        self.rest(steps)
        begun, returned = newcomer.of("joining")[0], newcomer.of("returned")[0]
        full = self._size + 1
        admitted = next(r for r in newcomer.of("view") if r["members"] == full)
        level = newcomer.of("level")
        first = newcomer.of("step")[0]
        spans = {
            "before": (quiet_s, begun["started_s"]),
            "importing": (begun["started_s"], begun["at_s"]),
            "joining": (begun["at_s"], first["at"]),
            "after": (first["at"], killed_s),
        }
        return {
            "import_s": begun["at_s"] - begun["started_s"],
            "level_s": level[0]["at_s"] - begun["at_s"] if level else None,
            "admitted_s": admitted["at_s"] - begun["at_s"],
            "returned_s": returned["at_s"] - begun["at_s"],
            "first_step_s": first["at"] - begun["at_s"],
            "worked_s": self._worked_s(newcomer, begun["at_s"]),
            "first_step_from_start_s": first["at"] - begun["started_s"],
            "newcomer_cores": (returned["cpu_s"] - begun["cpu_s"])
            / (returned["at_s"] - begun["at_s"]),
            "newcomer_received_mb": (after[-1][1] - before[-1][1]) / 1e6,
            "sent_mb": [
                (b[0] - a[0]) / 1e6 for a, b in zip(before, after, strict=True)
            ],
            "is_identical": self._is_identical(newcomer),
            "steps_s": {name: self.steps_in(*span) for name, span in spans.items()},
        }

    def control(self, cores: float, seconds: float) -> list[float]:
        """Let a process use the processor as a newcomer does; return others' steps."""
        burn = ("--burn", str(cores), "--seconds", str(seconds))
        process = self._start(self._size, joins=False, burn=burn)
        self.wait(lambda: process.of("returned"), "end of the control")
        self.rest(1)
        begun, ended = process.of("joining")[0], process.of("returned")[0]
        return self.steps_in(begun["at_s"], ended["at_s"])

    def steps_in(self, since_s: float, until_s: float) -> list[float]:
        """Return how long the members' steps took that overlap a span, by step.

        A step is as long as on the member where it took longest.
        """
        found: list[float] = []
        for spans in zip(*(m.of("step")[1:] for m in self._aligned()), strict=False):
            begin, end = min(s["begin"] for s in spans), max(s["at"] for s in spans)
            if begin < until_s and end > since_s:
                found.append(max(s["at"] - s["begin"] for s in spans))
        return found

    def _aligned(self) -> list[Process]:
        for member in self.members:
            for one, two in pairwise(member.of("step")):
                two["begin"] = one["at"]
        return self.members

    def _counters(self) -> list[tuple[int, int]]:
        return [(h.bytes_sent(), h.bytes_received()) for h in self._net.hosts]

    def _worked_s(self, newcomer: Process, since_s: float) -> float | None:
        """Return when the first step was there to which all members contributed."""
        full = self._size + 1
        found = [r["at"] for r in newcomer.of("step") if r["by"] == full]
        return found[0] - since_s if found else None

    def _is_identical(self, newcomer: Process) -> bool:
        """Whether all had the same bits after the first step with the newcomer."""
        first = newcomer.of("step")[0]
        told = [
            r["digest"]
            for m in self.members
            for r in m.of("step")
            if r["version"] == first["version"]
        ]
        return len(told) == self._size and {*told} == {first["digest"]}


def rounded(value: Any) -> Any:  # noqa: ANN401 - whatever a result holds
    """Return a result with few digits."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def bars(joins: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Compare what was measured with the bars."""
    usual_s = statistics.median(s for j in joins for s in j["steps_s"]["before"])
    joining = [s for j in joins for s in j["steps_s"]["joining"]]
    median = statistics.median(joining) / usual_s
    largest_s = max(joining)
    times = {
        name: max(j[name] for j in joins) for name in ("admitted_s", "first_step_s")
    }
    allowed_s = LARGEST_BAR * usual_s + EXTRA_S
    is_same = all(j["is_identical"] for j in joins)
    return [
        bar(
            f"others' median step while joining <= {MEDIAN_BAR} x before",
            round(median, 3),
            is_met=median <= MEDIAN_BAR,
        ),
        bar(
            f"no step above {LARGEST_BAR} x + {EXTRA_S} s = {allowed_s:.2f} s",
            round(largest_s, 3),
            is_met=largest_s <= allowed_s,
        ),
        bar(
            f"joined: a member of an installed view <= {ADMITTED_BAR_S:g} s after the"
            " call; the end of its first step beside it",
            rounded(times),
            is_met=times["admitted_s"] <= ADMITTED_BAR_S,
        ),
        bar("state identical, bit for bit", is_same, is_met=is_same),
    ]


def medians(joins: list[dict[str, Any]], control: list[float]) -> dict[str, float]:
    """Return the median step of each span, and beside a process that joins nothing."""
    spans = joins[0]["steps_s"]
    found = {
        name: statistics.median(s for j in joins for s in j["steps_s"][name])
        for name in spans
    }
    return {**found, "control": statistics.median(control)}


def main() -> None:
    """Let a machine join again and again, and save what the others noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--pause", type=float, default=0.5, help="of a quantum, in s")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of 1 M each")
    parser.add_argument("--steps", type=int, default=4, help="between two joins")
    parser.add_argument("--out", type=Path, default=dated("elastic-join"))
    chosen = parser.parse_args()
    loads = [os.getloadavg()[0]]
    joins: list[dict[str, Any]] = []
    control: list[float] = []
    with (
        lan(hosts=chosen.members + 1, rate=chosen.rate) as net,
        tempfile.TemporaryDirectory() as folder,
    ):
        options = ["--pause", str(chosen.pause), "--layers", str(chosen.layers)]
        bench = Bench(net, Path(folder), options)
        bench.start()
        for turn in range(chosen.times):
            joins.append(bench.join(chosen.steps))
            print(turn, json.dumps(rounded(joins[-1])), flush=True)
            cores, seconds = joins[-1]["newcomer_cores"], joins[-1]["returned_s"]
            control += bench.control(cores, seconds)
            loads.append(os.getloadavg()[0])
    verdicts = bars(joins)
    save(
        chosen.out,
        rounded(
            {
                **describe(),
                "load_1min": loads,
                "parameters": (chosen.layers * WIDTH + CLASSES) * (WIDTH + 1),
                "members_before": chosen.members,
                "rate": chosen.rate,
                "pause_of_a_quantum_s": chosen.pause,
                "bars": verdicts,
                "median_step_s": medians(joins, control),
                "control_steps_s": control,
                "joins": joins,
            }
        ),
    )
    sys.exit(any(each["verdict"] != "met" for each in verdicts))


if __name__ == "__main__":
    main()
