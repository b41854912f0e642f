"""The status page in a real browser as narrow as a phone, or as text without one."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from tests.kit.browser import CHROMIUM, PHONE, browser
from tests.kit.param_server import WorkerClient, server


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_shows_rounds_workers_and_the_loss(tmp_path: Path) -> None:
    with server(tmp_path / "out", rounds=20, workers=2) as served:
        anna, ben = (WorkerClient(served.url, served.code) for _ in range(2))
        anna.join(name="<i>Anna's</i> laptop", device="mps")
        ben.join(name="Ben", device="cuda")
        for client in (anna, ben):  # the first round waits until all have asked
            client.work(0.0)
        for _ in range(6):
            anna.step()
            ben.step()
        with browser(tmp_path / "profile") as page:
            page.resize(PHONE, is_phone=True)
            page.open(f"{served.url}/")
            page.wait_until("document.getElementById('status').textContent == 'Live'")
            page.wait_until("document.querySelectorAll('#workers tr').length == 2")
            text = page.evaluate("document.body.innerText")
            points = page.evaluate(
                "document.querySelector('#curve polyline').getAttribute('points')"
            )
            assert "6 of 20" in text
            assert "Ringleader trains tiny" in text
            assert "<i>Anna's</i> laptop (mps)" in text
            assert "Ben (cuda)" in text
            assert len(points.split()) == 6
            assert "does not answer" not in text
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE[0], "nothing is cut off at the side"
            page.screenshot(tmp_path / "page.png")
            assert page.problems == []
        anna.close()
        ben.close()


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    with server(tmp_path) as served:
        page = httpx2.get(f"{served.url}/", trust_env=False, timeout=60)
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["cache-control"] == "no-store"
        assert "unsafe" not in page.headers["content-security-policy"]
        assert "width=device-width" in page.text
        names = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        script = httpx2.get(f"{served.url}/server_page.js", trust_env=False, timeout=60)
        names += [f.removeprefix("./") for f in re.findall(r'from "(.*)"', script.text)]
        assert {"style.css", "server_page.js", "format.js"} <= set(names)
        for name in names:
            found = httpx2.get(f"{served.url}/{name}", trust_env=False, timeout=60)
            assert found.status_code == 200, name
            assert "://" not in found.text.replace("http://www.w3.org/2000/svg", "")
            assert "innerHTML" not in found.text
