"""The dashboard in a real browser: desktop, phone, keyboard, fifty machines."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from ringleader.dashboard.access import ATTEMPT_EVERY_S
from ringleader.dashboard.page_state import Row, State
from tests.kit.browser import CHROMIUM, DESKTOP, PHONE, Browser, browser
from tests.kit.simulated_cluster import simulated_state
from tests.kit.simulated_dashboard import simulated_dashboard

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium"
)

NUM_MACHINES, NUM_JOBS = 50, 8


def open_page(page: Browser, url: str) -> None:
    """Open the link and wait until everything is drawn."""
    page.open(url)
    page.wait_until(
        f"document.querySelectorAll('#machine-list .card').length == {NUM_MACHINES}"
        f" && document.querySelectorAll('#job-list .job').length == {NUM_JOBS}"
        " && document.querySelectorAll('polyline[points]').length > 0"
        f" && document.querySelectorAll('#job-list tbody tr').length == {NUM_MACHINES}"
    )


def test_fifty_machines_and_eight_jobs_in_a_browser(tmp_path: Path) -> None:
    state = simulated_state(NUM_MACHINES, NUM_JOBS)
    for job in state["jobs"].values():
        job.update(can_stop=True, has_log=True)
    with (
        simulated_dashboard(state) as shown,
        browser(tmp_path / "profile") as page,
    ):
        page.resize(DESKTOP)
        open_page(page, shown.url)
        assert page.evaluate("location.hash") == "", "the token leaves the address"
        _check_content(page)
        _check_reload(page, shown.url)
        _check_keyboard(page)
        _check_log_and_stop(page)
        assert shown.stopped == ["job-0"]
        _check_sizes(page, tmp_path)
        assert page.problems == []


def _check_content(page: Browser) -> None:
    text = page.evaluate("document.body.innerText")
    assert "Ringleader: home" in text
    assert "Leader: machine 0" in text
    assert "GeForce RTX 1" in text
    assert "<b>no answer</b>" in text, "names are text, not HTML"
    label = "document.querySelector('svg[aria-label^=loss]').ariaLabel"
    assert page.evaluate(label) == "loss, 40 points"


def _check_reload(page: Browser, url: str) -> None:
    """The page opens again in its tab without the token, by the key it has kept."""
    page.open(url.partition("#")[0])  # again, by the key of this tab
    page.wait_until("document.querySelectorAll('.card').length == 50")
    assert page.evaluate("document.getElementById('gate').hidden")


def _check_keyboard(page: Browser) -> None:
    """Everything that can be used is reached by Tab, and the matrix by arrows."""
    page.wait_until("document.querySelectorAll('#job-list button').length == 16")
    reached = set()
    for _ in range(60):
        page.press("Tab")
        seen = page.evaluate(
            "(e => e.id || e.name || e.textContent)(document.activeElement)"
        )
        reached.add(seen)
        if {"matrix", "links", "Jobs", "Show log", "Stop"} <= reached:
            break
    assert {"matrix", "links", "Jobs", "Show log", "Stop"} <= reached
    page.evaluate("document.getElementById('matrix').focus()")
    before = page.evaluate("document.getElementById('link-text').textContent")
    page.press("ArrowDown")
    page.press("ArrowDown")
    page.wait_until(
        "document.getElementById('link-text').textContent == "
        "'machine 2 to machine 1: 14 MB/s, latency 300 µs'"
    )
    assert before != page.evaluate("document.getElementById('link-text').textContent")


def _check_log_and_stop(page: Browser) -> None:
    page.evaluate("document.querySelector('#job-list button').click()")
    page.wait_until("document.querySelector('#job-list pre.log').textContent")
    log = page.evaluate("document.querySelector('#job-list pre.log').textContent")
    assert "step 7 <b>done</b>" in log
    page.evaluate("document.querySelector('#job-list .danger').focus()")
    page.press("Enter")
    page.wait_until("document.getElementById('ask-stop').open")
    page.evaluate("document.querySelector('#ask-stop .danger').focus()")
    page.press("Enter")
    page.wait_until(
        "document.getElementById('status').textContent == 'job job-0 stops'"
    )


def _check_sizes(page: Browser, folder: Path) -> None:
    for size, is_phone, colours in ((DESKTOP, False, "light"), (PHONE, True, "dark")):
        page.resize(size, is_phone=is_phone)
        page.set_colours(colours)
        page.wait_until(f"innerWidth == {size[0]}")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= size[0], "nothing is cut off at the side"
        picture = folder / f"{colours}.png"
        page.screenshot(picture)
        scale = 2 if is_phone else 1
        pixels = struct.unpack(">II", picture.read_bytes()[16:24])
        assert pixels == (size[0] * scale, size[1] * scale)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(18, 22, 28)", "dark"


def test_a_page_without_its_link_shows_how_to_open_it(tmp_path: Path) -> None:
    with (
        simulated_dashboard(simulated_state(2)) as shown,
        browser(tmp_path / "profile") as page,
    ):
        page.open(shown.url.partition("#")[0])
        page.wait_until("!document.getElementById('gate').hidden")
        assert "ringleader dashboard" in page.evaluate("document.body.innerText")
        assert page.evaluate("document.querySelectorAll('.card').length") == 0
        page.open("about:blank")
        page.open(f"{shown.url}x")
        page.wait_until("document.body.innerText.includes('its time is over')")


def test_a_page_that_a_code_opened_only_looks(tmp_path: Path) -> None:
    state = simulated_state(2, 1)
    for job in state["jobs"].values():
        job.update(can_stop=True, has_log=True)
    with (
        simulated_dashboard(state) as shown,
        browser(tmp_path / "profile") as page,
    ):
        page.resize(PHONE, is_phone=True)
        page.open(shown.url.partition("#")[0])
        page.type_code(shown.access.issue_code(-1e9))
        page.wait_until("document.body.innerText.includes('its time is over')")
        assert page.evaluate("document.querySelectorAll('.card').length") == 0
        time.sleep(1.1 * ATTEMPT_EVERY_S)
        page.type_code(shown.access.issue_code(time.monotonic()))
        page.wait_until("document.querySelectorAll('#job-list button').length == 2")
        page.wait_until("document.querySelectorAll('.card').length == 2")
        assert page.evaluate("document.querySelector('#job-list .danger').hidden")
        assert not page.evaluate("document.querySelector('#job-list button').hidden")
        assert shown.stopped == []


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
ValueError: <b>no data</b>"""


def test_jobs_tell_since_when_they_run_and_why_they_failed(tmp_path: Path) -> None:
    state = simulated_state(1, 3)
    running, failed, own = (dict(job, ranks=[]) for job in _three(state))
    now_s = time.time()
    running.update(started_s=now_s - 3700)
    failed.update(started_s=now_s - 90, ended_s=now_s - 25, failure=TRACEBACK)
    jobs = {each["id"]: each for each in (running, failed, own)}
    with (
        simulated_dashboard({}) as shown,
        browser(tmp_path / "profile") as page,
    ):
        page.resize(DESKTOP)
        page.open(shown.url)
        page.wait_until("document.getElementById('status').textContent == 'Live'")
        text = page.evaluate("document.body.innerText")
        assert "no other machine" not in text, "nobody knows yet"
        assert "No job runs" not in text
        shown.state = {**state, "jobs": {}}
        page.wait_until("document.body.innerText.includes('no other machine')")
        page.wait_until("document.body.innerText.includes('No job runs')")
        shown.state = {**state, "jobs": jobs}
        page.wait_until("document.querySelectorAll('#job-list .job').length == 3")
        times = [
            page.evaluate(f"document.querySelectorAll('.times')[{i}].innerText")
            for i in range(3)
        ]
        assert "1 h 1 min ago" in times[0]
        assert times[1].endswith("ended after 1 min 5 s")
        assert times[2] == "", "only its launchers know"
        shown_lines = page.evaluate(
            "document.querySelectorAll('.failure')[1].innerText.split('\\n').length"
        )
        assert shown_lines == 3, "a traceback keeps its lines"
        page.screenshot(tmp_path / "jobs.png")
        assert page.problems == []


def _three(state: State) -> list[Row]:
    (job,) = state["jobs"].values()
    return [{**job, "id": f"job-{i}", "name": f"job-{i}"} for i in range(3)]
