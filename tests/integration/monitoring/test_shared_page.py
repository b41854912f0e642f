"""``ringleader dashboard --share`` of a real agent, in a browser over HTTPS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringleader.dashboard.access import ATTEMPT_EVERY_S
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.testing.node_process import make_home
from tests.kit.browser import CHROMIUM, PHONE, Browser, browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium"
)

PATIENCE_S = 120.0
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
STOP = """fetch("stop", {
  method: "POST", body: JSON.stringify({ job: "job-0" }),
  headers: { "Content-Type": "application/json",
             Authorization: `Bearer ${sessionStorage.getItem("key")}` },
}).then(async answer => [answer.status, (await answer.json()).error])"""


def share(home: Path) -> tuple[str, str]:
    """Run the command; return the address and the code that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "ringleader", "dashboard", "--share", "--json"],
        env={**os.environ, "RINGLEADER_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    found = json.loads(done.stdout)
    return found["url"], found["code"]


def try_code(page: Browser, url: str, code: str) -> str:
    """Open the page anew, type a code, and return what the page then says."""
    page.open("about:blank")
    page.open(url)
    page.type_code(code)
    page.wait_until(
        "document.getElementById('gate').hidden"
        " || document.getElementById('gate-text').textContent.includes('wrong')"
    )
    if page.evaluate("document.getElementById('gate').hidden"):
        return ""
    return str(page.evaluate("document.getElementById('gate-text').textContent"))


def test_a_phone_looks_by_a_code_over_https_and_stops_nothing(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", os.urandom(32))
    config = AgentConfig(
        home=str(home), interfaces=[LOOPBACK], profile="loopback", name="anna"
    )
    with (
        AgentProcess.start(config),
        browser(tmp_path / "profile", "--ignore-certificate-errors") as page,
    ):
        page.resize(PHONE, is_phone=True)
        url, code = share(home)
        assert url.startswith("https://")
        other = f"{(int(code) + 1) % 10**8:08}"
        assert "wrong or its time is over" in try_code(page, url, other)
        _, newer = share(home)
        time.sleep(1.1 * ATTEMPT_EVERY_S)  # one may be tried per second
        assert "wrong or its time is over" in try_code(page, url, code), "replaced"
        time.sleep(1.1 * ATTEMPT_EVERY_S)
        assert try_code(page, url, newer) == ""
        page.wait_until("document.querySelectorAll('.card').length == 1")
        page.wait_until("document.getElementById('status').textContent == 'Live'")
        assert "anna" in page.evaluate("document.body.innerText")
        assert page.evaluate("sessionStorage.getItem('can_stop')") == "no"
        status, error = page.evaluate(STOP)
        assert (status, error) == (
            403,
            "a shared page only looks; stop it on a machine",
        )
