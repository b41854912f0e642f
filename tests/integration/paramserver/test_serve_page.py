"""The status page in a real browser as narrow as a phone, or as text without one."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import httpx2
import pytest

from tests.kit.param_server import WorkerClient, server

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE = (500, 900)
"""The narrowest window of headless Chromium."""


def browse(url: str, profile: Path, *flags: str) -> str:
    """Return what the browser prints about a page after its scripts have run."""
    assert BROWSER is not None
    found = subprocess.run(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-proxy-server",
            f"--user-data-dir={profile}",
            f"--window-size={PHONE[0]},{PHONE[1]}",
            "--virtual-time-budget=5000",
            *flags,
            url,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return found.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_shows_rounds_workers_and_the_loss(tmp_path: Path) -> None:
    with server(tmp_path / "out", rounds=20, workers=2) as served:
        anna, ben = (WorkerClient(served.url, served.code) for _ in range(2))
        anna.join(name="<i>Anna's</i> laptop", device="mps")
        ben.join(name="Ben", device="cuda")
        for _ in range(6):
            anna.step()
            ben.step()
        picture = tmp_path / "page.png"
        page = browse(f"{served.url}/", tmp_path / "a", "--dump-dom")
        browse(f"{served.url}/", tmp_path / "b", f"--screenshot={picture}")
        anna.close()
        ben.close()
    text = re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)
    assert "6 of 20" in text
    assert "Ringleader trains tiny" in text
    assert "&lt;i&gt;Anna's&lt;/i&gt; laptop (mps)" in text
    assert "Ben (cuda)" in text
    points = re.search(r'<polyline points="([^"]*)"', text)
    assert points is not None
    assert len(points[1].split()) == 6
    assert "does not answer" not in text
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert (width, height) == PHONE


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    with server(tmp_path) as served:
        page = httpx2.get(f"{served.url}/", trust_env=False, timeout=60)
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-store"
    assert not re.search(r'(src|href)="(?!data:)', page.text)
    assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert "width=device-width" in page.text
    assert "innerHTML" not in page.text
