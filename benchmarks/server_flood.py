"""Measures workers of a parameter server while strangers flood it with connections.

    sudo .venv/bin/python benchmarks/server_flood.py --out FILE.json

A server with TLS, two workers that take 50 ms for a step, and strangers from 9 or 120
addresses run in a network namespace. ``silent`` connections send nothing, ``hello``
ones begin a TLS handshake and stop. Calm phases and floods alternate; ``ratio``
compares a flood with the calm before and after it. ``errors`` counts requests of
workers that failed, ``joined_s`` is the time that a new worker needed to join,
``server_cpu`` the cores that the server used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

from tests.kit.server_flood import Flood, measure, ratios

FLOODS = ["silent:9:100", "silent:120:10", "silent:120:100"]
FLOODS += ["hello:9:100", "hello:120:10"]


def main() -> None:
    """Measure, print a table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    phases = measure(options.seconds, [Flood.parse(f) for f in FLOODS], 600)
    found = ratios(phases)
    for phase in phases:
        print(
            f"{phase.flood or 'calm':16}{phase.updates_per_s:8.1f} updates/s"
            f"{phase.connections_per_s:8.0f} connections/s{phase.errors:4} errors"
            f"  joined in {phase.joined_s:.2f} s  {phase.server_cpu:.2f} cores"
            + (f"  ratio {found[phase.flood]:.2f}" if phase.flood else "")
        )
    if options.out:
        record = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "ratios": found,
            "phases": [asdict(phase) for phase in phases],
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
