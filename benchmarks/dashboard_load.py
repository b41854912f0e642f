"""The dashboard of a real agent that sees 50 machines and 8 jobs.

The agent runs in a process of its own, and every callback of its event loop is timed.
The other machines are simulated: agents with keys, links and places in the view, but
with made-up hardware, links, load and jobs. A Chromium follows the page meanwhile and
tells its long tasks, and how long it takes to answer a key. Bars:

* no callback of the agent takes more than 50 ms of its thread, and none blocks the
  loop longer by the clock (other programs on this machine count there, too);
* no task of the page takes more than 50 ms while changes arrive;
* files and first state of the page are less than 300 kB.

    PYTHONPATH=. .venv/bin/python -m benchmarks.dashboard_load --json FILE.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import machine, results_file
from ringleader.dashboard.assets import load_assets
from ringleader.jobs.client.channel import find_agent
from ringleader.monitoring.messages import OpenDashboard
from ringleader.monitoring.open_dashboard import open_dashboard
from ringleader.testing.node_process import make_home
from ringleader.transport.free_ports import free_ports
from tests.kit.browser import CHROMIUM, DESKTOP, PHONE, Browser, browser
from tests.kit.dashboard_client import DashboardClient

FOLDER = Path(__file__).parent
NUM_MACHINES, NUM_JOBS = 50, 8
PATIENCE_S = 300.0
NUM_UPDATES = 10
LIMIT_MS = 50.0
LIMIT_BYTES = 300_000

WATCH = """
const fresh = () => ({ tasks: [], keys: [], frames: 0, gap: 0, updates: 0 });
window.seen = fresh();
window.take = () => { const found = seen; window.seen = fresh(); return found; };
new PerformanceObserver(list => {
  for (const each of list.getEntries()) seen.tasks.push(Math.round(each.duration));
}).observe({ type: "longtask", buffered: true });
new PerformanceObserver(list => {
  for (const each of list.getEntries()) {
    if (each.name !== "keydown") continue;
    const handler = each.processingEnd - each.processingStart;
    seen.keys.push({ to_paint: Math.round(each.duration), handler });
  }
}).observe({ type: "event", durationThreshold: 16, buffered: true });
let last = performance.now();
requestAnimationFrame(function frame(now) {
  seen.gap = Math.max(seen.gap, now - last); last = now; seen.frames++;
  requestAnimationFrame(frame);
});
addEventListener("DOMContentLoaded", () => {
  const what = { subtree: true, childList: true, characterData: true };
  const list = document.getElementById("machine-list");
  new MutationObserver(changes => { seen.updates += changes.length; })
    .observe(list, what);
});
"""
TAKE = "take()"


class TimedAgent:
    """The agent whose event loop is timed."""

    def __init__(self, home: Path, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(FOLDER / "dashboard_load_agent.py"), home, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(self) -> dict[str, Any]:
        """Return the longest callbacks since the last call."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Path, TimedAgent]]:
    """An agent that sees the simulated machines."""
    root = os.urandom(32)
    [port] = free_ports(1)
    homes = [make_home(folder / str(i), root) for i in range(NUM_MACHINES)]
    with ExitStack() as stack:
        agent = TimedAgent(homes[0], port)
        stack.callback(end, agent.process)
        wait_for_agent(homes[0])
        script = FOLDER / "dashboard_load_machines.py"
        numbers = [str(port), str(NUM_JOBS)]
        others = subprocess.Popen(
            [sys.executable, str(script), *numbers, *map(str, homes[1:])]
        )
        stack.callback(end, others)
        wait_for_members(homes[0], others)
        yield homes[0], agent


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)


def wait_for_agent(home: Path) -> None:
    """Wait until the agent is up."""
    until_s = time.monotonic() + PATIENCE_S
    while find_agent(home) is None:
        assert time.monotonic() < until_s, "the agent does not start"
        time.sleep(0.2)


def wait_for_members(home: Path, others: subprocess.Popen[Any]) -> None:
    """Wait until the view holds all machines."""
    until_s = time.monotonic() + PATIENCE_S
    count = 0
    while count < NUM_MACHINES:
        assert others.poll() is None, "the simulated machines have ended"
        found = find_agent(home)
        assert found is not None
        if len(found.snapshot.ring) != count:
            count = len(found.snapshot.ring)
            print(f"{count} machines", flush=True)
        assert time.monotonic() < until_s, f"{count} machines in time"
        time.sleep(1.0)


def open_page(page: Browser, home: Path) -> None:
    """Open the dashboard and wait until everything is shown."""
    page.open(open_dashboard(home, OpenDashboard()).url)
    page.wait_until(
        f"document.querySelectorAll('#machine-list .card').length == {NUM_MACHINES}"
        f" && document.querySelectorAll('#job-list .job').length == {NUM_JOBS}"
        " && document.querySelectorAll('#job-list tbody tr').length "
        f"== {NUM_MACHINES - 1}"
        f" && document.querySelectorAll('polyline[points]').length == {4 * NUM_JOBS}"
    )


def watch(page: Browser, seconds: float) -> dict[str, Any]:
    """Press a key every second while changes arrive; return what the page saw."""
    page.evaluate("document.getElementById('matrix').focus()")
    page.evaluate(TAKE)
    until_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until_s:
        number += 1
        page.press("ArrowDown" if number % 2 else "ArrowRight")
        time.sleep(1.0)
    return summary(page.evaluate(TAKE), seconds)


def summary(seen: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the figures of a page."""
    keys = seen["keys"]
    return {
        "seconds": seconds,
        "changed_nodes": seen["updates"],
        "long_tasks_ms": sorted(seen["tasks"], reverse=True),
        "frames_per_s": round(seen["frames"] / seconds, 1),
        "longest_gap_between_frames_ms": round(seen["gap"]),
        "slow_keys": len(keys),
        "slowest_key_to_paint_ms": max((k["to_paint"] for k in keys), default=0),
        "slowest_key_handler_ms": round(max((k["handler"] for k in keys), default=0)),
    }


def page_bytes(home: Path) -> dict[str, int]:
    """Return what a page loads: its files and the first state, with headers."""
    client = DashboardClient(open_dashboard(home, OpenDashboard()).url)
    client.open()
    origin = client.origin.removeprefix("http://")
    files = sum(
        len(client.raw(f"GET {path} HTTP/1.1\r\nHost: {origin}\r\n\r\n".encode()))
        for path in load_assets()
        if path != "/index.html"
    )
    plain = _event_bytes(client, "identity")
    gzip = _event_bytes(client, "gzip")
    return {
        "files": files,
        "first_state": gzip[0],
        "first_state_uncompressed": plain[0],
        "per_update": sum(gzip[1:]) // (len(gzip) - 1),
        "per_update_uncompressed": sum(plain[1:]) // (len(plain) - 1),
    }


def _event_bytes(client: DashboardClient, encoding: str) -> list[int]:
    """Return the bytes on the wire of the first events of a page."""
    headers = {"Authorization": f"Bearer {client.key}", "Accept-Encoding": encoding}
    connection = HTTPConnection(*client.address, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/events", headers=headers)
        stream = connection.getresponse()
        unzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
        return [_next_event_bytes(stream, unzip) for _ in range(1 + NUM_UPDATES)]
    finally:
        connection.close()


def _next_event_bytes(stream: HTTPResponse, unzip: Any) -> int:  # noqa: ANN401 - zlib's
    count, end = 0, b""
    while not end.endswith(b"\n\n"):  # the next one comes a second later
        data = stream.read1()
        assert data, "the stream has ended"
        count += len(data)
        end = end[-2:] + (data if unzip is None else unzip.decompress(data))
    return count


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """Measure the agent alone, then with the page, at two sizes."""
    found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    with cluster(folder) as (home, agent), browser(folder / "profile") as page:
        found["forming"] = agent.take()
        time.sleep(seconds / 4)
        found["nobody looks"] = agent.take()
        page.run_before_page(WATCH)
        page.resize(DESKTOP)
        open_page(page, home)
        found["page opens"] = summary(page.evaluate(TAKE), 1.0)
        found["agent while it opens"] = agent.take()
        found["page"] = watch(page, seconds)
        found["agent"] = agent.take()
        page.screenshot(folder / "desktop.png")
        page.resize(PHONE, is_phone=True)
        found["page on a phone"] = watch(page, seconds / 4)
        page.screenshot(folder / "phone.png")
        found["bytes"] = page_bytes(home)
        assert page.problems == [], page.problems
    found["load_after"] = os.getloadavg()[0]
    return found


def judge(found: dict[str, Any]) -> list[dict[str, object]]:
    """Return the bars."""
    bar = results_file.bar
    opening, steady = found["agent while it opens"], found["agent"]
    longest = [*opening["longest"], *steady["longest"]]
    cpu_ms = max(each["cpu_ms"] for each in longest)
    wall_ms = max(each["wall_ms"] for each in longest)
    pages = ("page opens", "page", "page on a phone")
    tasks = [ms for each in pages for ms in found[each]["long_tasks_ms"]]
    total = found["bytes"]["files"] + found["bytes"]["first_state"]
    return [
        bar(
            "no callback of the agent takes more than 50 ms of its thread",
            f"{cpu_ms} ms",
            is_met=cpu_ms <= LIMIT_MS,
        ),
        bar(
            "no callback of the agent blocks its loop for more than 50 ms",
            f"{wall_ms} ms",
            is_met=wall_ms <= LIMIT_MS,
        ),
        bar(
            "no task of the page takes more than 50 ms",
            f"{max(tasks)} ms" if tasks else "none longer than 50 ms",
            is_met=not tasks,
        ),
        bar(
            "files and first state are less than 300 kB",
            f"{total} bytes",
            is_met=total < LIMIT_BYTES,
        ),
    ]


def main() -> None:
    """Measure, judge and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--pictures", type=Path, default=None)
    options = parser.parse_args()
    assert CHROMIUM is not None, "apt-get install chromium"
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = measure(folder, options.seconds)
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
            for each in ("desktop.png", "phone.png"):
                (folder / each).rename(options.pictures / each)
    bars = judge(found)
    file = options.json or results_file.dated("dashboard-load")
    results_file.save(file, {"machine": machine.describe(), **found, "bars": bars})


if __name__ == "__main__":
    main()
