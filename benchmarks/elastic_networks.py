"""Does to elastic runs what networks and machines do, beside kill -9, and checks all.

    .venv/bin/python benchmarks/elastic_networks.py              # as root
    .venv/bin/python benchmarks/elastic_networks.py --only "cable cut" --sizes 3

A cell is a fault of one machine (the leader or another one) in a run of 2, 3 or 4,
each of which is a network namespace. The process is stopped (SIGSTOP) for 3 s or 30 s;
the machine sleeps for 30 s (the process stopped and the cable out); its cable is cut;
only what it sends is lost (mute), or only what it would receive (deaf); all its TCP
connections are reset every 0.1 s (``ss --kill``); its cable carries 1 % of the rate; it
roams for 5 s, and comes back with the same address or with another one. By default
that is too long and the others go on without it; with ``--profile wifi`` they wait.

In each cell the others go on, every step of every member is compared (bit for bit with
the other members, within 1e-9 with a single process), all train together again, and
every ledger holds each sample once. Measured are the longest time without an applied
update on the others (``gap_s``) and the time from the end of the fault until all have
applied a step together (``back_s``). The results of today are continued: cells that are
in the file are not run again without ``--again``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe
from results_file import bar, dated, save

from ringleader.simulation.lan import can_make_faults, lan

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_network import FAULTS, harm_one, missing_tool
from tests.kit.elastic_world import World

BACK_S = 10.0
GAP_S = 5.0
ROAM_GAP_S = 10.0
"""The others wait for one that roams: for 5 s, and until TCP sends again."""
ROLES = ("leader", "other")
ONE_SIZE = {"asleep 30 s", "1 % of 10 Mbit/s"}
"""Faults that differ from another one only a little: 3 members are enough."""


class Cell(NamedTuple):
    """A fault of a machine in a role, in a run of some size."""

    fault: str
    role: str
    size: int

    def __str__(self) -> str:
        return f"{self.fault}, {self.role} of {self.size}"


def cells(sizes: list[int], only: str) -> list[Cell]:
    """Return the cells of the matrix, the faults of one size after each other."""
    return [
        Cell(fault, role, size)
        for fault in FAULTS
        if only in fault
        for size in sizes
        if size == 3 or fault not in ONE_SIZE
        for role in ROLES
    ]


def measure(cell: Cell) -> dict[str, Any]:
    """Run one cell; return what it has shown, or why it could not."""
    if tool := missing_tool(cell.fault):
        return {"failure": f"not run: {tool} is not installed (package iproute2)"}
    load = round(os.getloadavg()[0], 2)
    found: dict[str, Any]
    with tempfile.TemporaryDirectory() as folder, lan(hosts=cell.size) as net:
        world = World(Path(folder), cell.size, net)
        with world:
            try:
                seen = harm_one(world, net, cell.fault, cell.role)
                found = seen._asdict()
            except AssertionError as exc:
                found = {"failure": f"{type(exc).__name__}: {exc}"}
    return {
        **found,
        "steps_compared": world.checks,
        "largest_difference": world.largest_difference,
        "load_before": load,
        "at": time.strftime("%H:%M:%S"),
    }


def judge(cell: Cell, found: dict[str, Any]) -> dict[str, object]:
    """Return the bar of a cell, with its verdict."""
    stays = cell.fault in ("stopped 3 s", "roams 5 s on Wi-Fi")
    gap_s = ROAM_GAP_S if cell.fault.endswith("Wi-Fi") else GAP_S
    limits = f"an update <= {gap_s:g} s, all together <= {BACK_S:g} s"
    text = f"{cell}: {'not left out, ' if stays else ''}{limits}"
    if "failure" in found:
        return bar(text, found["failure"], is_met=False)
    is_met = found["gap_s"] <= gap_s and found["back_s"] <= BACK_S
    shown = {name: found[name] for name in ("gap_s", "back_s", "is_left_out")}
    return bar(text, shown, is_met=is_met and not (stays and found["is_left_out"]))


class Results:
    """What is in the file: cells and bars, by the names of the cells."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._cells: dict[str, dict[str, Any]] = {}
        self._bars: dict[str, dict[str, object]] = {}

    def load(self) -> None:
        """Take what was measured before."""
        if self._file.exists():
            found = json.loads(self._file.read_text())
            self._cells = found["cells"]
            self._bars = dict(zip(self._cells, found["bars"], strict=True))

    def has(self, cell: Cell) -> bool:
        """Whether the cell was run."""
        return str(cell) in self._cells

    def add(self, cell: Cell, found: dict[str, Any]) -> None:
        """Judge and save a cell."""
        self._cells[str(cell)] = found
        self._bars[str(cell)] = judge(cell, found)
        bars = list(self._bars.values())
        save(self._file, {**describe(), "cells": self._cells, "bars": bars})

    def are_met(self) -> bool:
        """Whether all bars are."""
        return all(each["verdict"] == "met" for each in self._bars.values())


def main() -> None:
    """Run the cells that are missing; save the results after each of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="2,3,4")
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--again", action="store_true", help="also what is in the file")
    parser.add_argument("--out", type=Path, default=dated("elastic-networks"))
    chosen = parser.parse_args()
    is_possible, reason = can_make_faults()
    if not is_possible:
        parser.error(f"cannot make faults here: {reason}")
    sizes = [*map(int, chosen.sizes.split(","))]
    wanted = cells(sizes, chosen.only)
    if not wanted or not {2, 3, 4}.issuperset(sizes):
        parser.error(f"no such cells; faults: {', '.join(FAULTS)}; sizes: 2, 3, 4")
    results = Results(chosen.out)
    results.load()
    for cell in wanted:
        if chosen.again or not results.has(cell):
            results.add(cell, measure(cell))
    sys.exit(not results.are_met())


if __name__ == "__main__":
    main()
