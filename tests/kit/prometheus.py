"""A real Prometheus that scrapes one page, and answers queries."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringleader.transport.free_ports import free_ports

PROMETHEUS = shutil.which("prometheus")
PATIENCE_S = 120.0
_CONFIG = """
global: {scrape_interval: 2s, scrape_timeout: 2s}
scrape_configs:
  - job_name: ringleader
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""


@dataclass(slots=True)
class Prometheus:
    """The API of a server on this machine."""

    port: int

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query; AssertionError if it is refused."""
        text = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{text}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(url, timeout=PATIENCE_S) as answer:
                reply = json.load(answer)
        except urllib.error.HTTPError as exc:
            if exc.code == 503:  # it is starting
                raise
            raise AssertionError(f"{expression}: {exc.read().decode()}") from exc
        assert reply["status"] == "success", reply
        found: list[dict[str, Any]] = reply["data"]["result"]
        return found

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """The first result of a query that is not empty."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            try:
                if found := self.query(expression):
                    return found
            except OSError:
                pass  # nothing listens yet, or it is not ready
            time.sleep(0.1)
        raise AssertionError(f"{expression}: no data in {PATIENCE_S} s")


@contextmanager
def prometheus(folder: Path, scraped_port: int) -> Iterator[Prometheus]:
    """Run Prometheus with its data in ``folder`` until the block ends."""
    assert PROMETHEUS is not None
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG % scraped_port)
    (port,) = free_ports(1)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(PROMETHEUS, f"--config.file={config}", "--log.level=warn"),
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
