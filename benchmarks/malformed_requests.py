"""Sends malformed requests to every door of a machine, as a stranger would.

    .venv/bin/python benchmarks/malformed_requests.py --count 100000 [--door NAME ...]

A resident agent with its dashboard and its page for phones, ``ringleader metrics``,
``ringleader coordinator`` and rank 0 of a star (with and without TLS), ``ringleader
serve`` (HTTP and HTTPS) and a worker's health service run as real processes. Each gets
``--count`` connections whose content is wrong in one of many ways, by number, so that
one can be sent again. One of ten gets through TLS, at the coordinator and the star with
the certificate of a member. Bars: nothing uncaught in any log, logs grow by less than
1 MB, and an honest client is served afterwards.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

from results_file import bar, dated, save

from tests.kit.doors import OpenDoor, open_doors, plain_popen
from tests.kit.malformed_requests import send_all

MAX_LOG_BYTES = 1_000_000
CHUNK = 5000


def main() -> None:
    """Send, print a line per door and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--door", action="append", help="only these")
    parser.add_argument("--out", type=Path, default=dated("malformed-requests"))
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        open_doors(Path(folder), plain_popen) as doors,
    ):
        chosen = [d for d in doors if not options.door or d.door.name in options.door]
        found = {each.door.name: attack(each, options.count) for each in chosen}
        logs = {each.log: each for each in chosen}
        errors = [line for each in logs.values() for line in each.errors()]
        most = max(int(str(each["log_bytes"])) for each in found.values())
        well = [each.door.name for each in chosen if not each.is_well()]
        bars = [
            bar("uncaught errors: 0", errors[:5], is_met=not errors),
            bar("log growth below 1 MB", most, is_met=most < MAX_LOG_BYTES),
            bar("serves honest clients afterwards; not", well, is_met=not well),
        ]
    save(options.out, {"count": options.count, "doors": found, "bars": bars})


def attack(opened: OpenDoor, count: int) -> dict[str, object]:
    """Send the requests to one door and return what happened."""
    before, began_s = opened.log_bytes(), time.monotonic()
    sent = answered = refused = 0
    statuses: dict[str, int] = {}
    for first in range(0, count, CHUNK):
        tally = send_all(opened.door, first, min(CHUNK, count - first))
        sent, answered = sent + tally.sent, answered + tally.answered
        refused += tally.refused
        for status, times in tally.statuses.items():
            statuses[status] = statuses.get(status, 0) + times
    found = {
        "sent": sent,
        "answered": answered,
        "could_not_connect": refused,
        "statuses": dict(sorted(statuses.items())),
        "log_bytes": opened.log_bytes() - before,
        "seconds": round(time.monotonic() - began_s, 1),
    }
    print(opened.door.name, found, flush=True)
    return found


if __name__ == "__main__":
    main()
