"""NodeProcess: a node on a host of a virtual LAN, controlled line by line."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringleader.identity.cluster_secret import ClusterSecret, store
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import Home
from ringleader.simulation.lan import VirtualHost

Event = dict[str, Any]


def make_home(path: Path, root: bytes) -> Path:
    """Create the home of a machine in the cluster with key ``root``.

    Skips the pairing phrase, whose key derivation takes 0.2 s.
    """
    with Home(path).writing() as change:
        store(change, ClusterSecret(root=Secret(root), name="test"))
    return path


@dataclass(slots=True)
class NodeProcess:
    """A process on a host that reports events as lines of JSON."""

    process: subprocess.Popen[str]
    events: list[Event] = field(default_factory=list)
    _inbox: queue.Queue[Event | None] = field(default_factory=queue.Queue)
    _reader: threading.Thread | None = None

    @classmethod
    def start(
        cls, host: VirtualHost, home: Path, script: Path, *arguments: str, **env: str
    ) -> NodeProcess:
        """Run a script on a host, with ``home`` as its Ringleader home."""
        process = host.popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RINGLEADER_HOME": str(home),
                "OMP_NUM_THREADS": "1",
                **env,
            },
        )
        node = cls(process)
        node.follow_output()
        return node

    def follow_output(self) -> None:
        """Start to read the events of the process."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._inbox.put(json.loads(line))
        self._inbox.put(None)

    def wait(self, wanted: Callable[[Event], bool], within_s: float = 200.0) -> Event:
        """Return the next event that matches; AssertionError if none comes in time."""
        until_s = time.monotonic() + within_s
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                event = self._inbox.get(timeout=left_s)
            except queue.Empty:
                break
            assert event is not None, f"the node ended; last events: {self.events[-3:]}"
            self.events.append(event)
            if wanted(event):
                return event
        raise AssertionError(
            f"no such event in {within_s} s; last events: {self.events[-3:]}"
        )

    def wait_for(self, name: str, within_s: float = 200.0, **facts: object) -> Event:
        """Return the next event of that name with these fields."""
        return self.wait(
            lambda e: e["event"] == name and facts.items() <= e.items(), within_s
        )

    def inbox_is_empty(self) -> bool:
        """Whether all events received so far have been read."""
        return self._inbox.empty()

    def query(self) -> Event:
        """Ask the process for the current state of its agent and return it."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.wait_for("look")

    def query_until(
        self, wanted: Callable[[Event], bool], within_s: float = 200.0
    ) -> Event:
        """Query until the state matches; AssertionError after ``within_s``."""
        until_s = time.monotonic() + within_s
        while not wanted(seen := self.query()):
            assert time.monotonic() < until_s, (
                f"the state did not match within {within_s} s: {seen}"
            )
            time.sleep(0.05)
        return seen

    def close(self) -> None:
        """End the process by closing its input and wait; kill it after 60 s."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):  # it may have ended
                self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
        if self._reader is not None:
            self._reader.join(60)
        if self.process.stdout is not None:
            self.process.stdout.close()


def member_names(seen: Event) -> set[str]:
    """Return the names of the nodes in the view of a snapshot."""
    return {row["name"] for row in seen["nodes"] if row["in_view"]}
