"""Elastic runs of several members on this machine, with kills; for one thread.

Members are forks of this process, which has imported torch, so a new one starts in
milliseconds. Every step of every member is checked as it is reported: parameters equal,
bit for bit, to those of the other members at that version, and near those of the
reference.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch._dynamo  # noqa: F401 - once, not in every member: optimizers import it late

from ringleader.identity import join_phrase
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.settings.run import RunSettings
from ringleader.simulation.lan import VirtualLan
from ringleader.testing.run_member import issue_credentials
from ringleader.transport.free_ports import free_ports
from tests.kit.elastic_member import become_member
from tests.kit.endless_task import GLOBAL_BATCH, SAMPLES, LossReference, Reference

LAN_PORT = 29_650

Report = dict[str, Any]


class Hang(AssertionError):
    """Nothing has happened before a deadline."""


class Failed(AssertionError):
    """A member has a wrong value, or the ledger is wrong."""


class Ended(AssertionError):
    """A member has ended by itself."""


class Applied(NamedTuple):
    """A step that a member has applied."""

    at_s: float
    """By the monotonic clock."""
    members: frozenset[str]
    """Of the run, by then."""


@dataclass(slots=True, eq=False)
class Member:
    """One life of a machine of the run."""

    index: int
    pid: int
    sock: socket.socket
    started_s: float
    version: int = -1
    stepped_s: float = 0.0
    """When it applied its last step, by the monotonic clock."""
    recent: deque[Applied] = field(default_factory=lambda: deque(maxlen=1000))
    """Its last steps."""
    members: list[str] = field(default_factory=list)
    """Members of the run at its last step, in ring order."""
    is_alive: bool = True
    died_s: float = 0.0
    unread: bytes = b""
    replies: dict[str, Report] = field(default_factory=dict)
    """The last report of each other kind."""

    def tell(self, **command: object) -> None:
        """Send a command; a member that is dying does not read it."""
        with contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(command).encode() + b"\n")

    def first_step_s(self, after_s: float, without: Collection[str] = ()) -> float:
        """When it first applied a step after a moment, without some members of the run.

        Infinite if it has not yet.
        """
        found = math.inf
        for step in reversed(self.recent):
            if step.at_s <= after_s or not step.members.isdisjoint(without):
                break
            found = step.at_s
        return found


@dataclass(slots=True)
class World:
    """The machines of one run."""

    folder: Path
    size: int
    net: VirtualLan | None = None
    """Each machine in a network namespace of its own; None: all on the loopback."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of ``ringleader.elastic``."""
    run: str = "kills"
    alive: dict[int, Member] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    reference: Reference | LossReference = field(default_factory=Reference)
    is_split: bool = False
    """The network is cut, or was until a moment ago: there may be several histories.
    When it heals, a machine may be alone for a while and the others of its part not."""
    weights: dict[tuple[frozenset[str], int], bytes] = field(default_factory=dict)
    """Parameters by members of the run (only while it is split) and version, as the
    first member reported them."""
    largest_difference: float = 0.0
    checks: int = 0
    """Steps that were compared with other members and the reference."""
    _files: list[Path] = field(default_factory=list)
    _ports: list[int] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __enter__(self) -> Self:
        cluster = ClusterSecret.from_phrase(join_phrase.new(), name="kills")
        for _ in range(self.size):
            file, node = issue_credentials(self.folder, cluster)
            self._files.append(file)
            self.nodes.append(node)
        on_lan = self.net is not None
        self._ports = [LAN_PORT] * self.size if on_lan else free_ports(self.size)
        return self

    def __exit__(self, *_: object) -> None:
        for member in list(self.alive.values()):
            self.kill(member)
        self._selector.close()

    # -- members -----------------------------------------------------------------------

    def start(
        self, index: int, *, joins: bool, kill_at: str = "", **variables: str
    ) -> Member:
        """Start a machine, at the beginning or while the others train.

        ``variables`` are further ones of its environment.
        """
        ours, theirs = socket.socketpair()
        environment = {
            **self._environment(index, joins=joins),
            "KILL_AT": kill_at,
            **variables,
        }
        namespace = self.net.hosts[index].name if self.net else ""
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for other in self.alive.values():
                other.sock.close()
            become_member(theirs, environment, namespace, parent)
        theirs.close()
        member = Member(index, pid, ours, time.monotonic())
        self.alive[index] = member
        self._selector.register(ours, selectors.EVENT_READ, member)
        return member

    def _environment(self, index: int, *, joins: bool) -> dict[str, str]:
        addresses = [
            self.net.hosts[i].address if self.net else "127.0.0.1"
            for i in range(self.size)
        ]
        peers = [f"{a}:{p}" for a, p in zip(addresses, self._ports, strict=True)]
        run = RunSettings(
            job=self.run,
            is_joiner=joins,
            credentials=str(self._files[index]),
            peers=",".join(peers[:index] + peers[index + 1 :]),
            port=self._ports[index],
            size=1 if joins else self.size,
        )
        return {
            **run.environment(),
            "RINGLEADER_ADDRESS": addresses[index],
            "RINGLEADER_NAME": f"m{index}",
            "RINGLEADER_CHECKPOINT": str(self.folder / f"checkpoints{index}"),
            "TASK_DTYPE": self.reference.dtype,
            "ELASTIC_OPTIONS": json.dumps(dict(self.options)),
        }

    def kill(self, member: Member, number: signal.Signals = signal.SIGKILL) -> float:
        """Kill a member from outside and return when."""
        at_s = time.monotonic()
        if member.is_alive:
            os.kill(member.pid, number)
        if number == signal.SIGKILL:
            self._bury(member, at_s)
        return at_s

    def _bury(self, member: Member, at_s: float) -> None:
        if not member.is_alive:
            return
        self._drain(member)
        status = os.waitstatus_to_exitcode(os.waitpid(member.pid, 0)[1])
        member.is_alive, member.died_s = False, at_s
        self._selector.unregister(member.sock)
        member.sock.close()
        if self.alive.get(member.index) is member:
            del self.alive[member.index]
        if status != -signal.SIGKILL:
            text = f"m{member.index} ended by itself, with status {status}"
            raise Ended(f"{text}; it printed why")

    def _drain(self, member: Member) -> None:
        """Read what a killed member had reported."""
        member.sock.setblocking(False)
        try:
            while found := member.sock.recv(1 << 16):
                self._take(member, found)
        except OSError:
            pass

    # -- reports -----------------------------------------------------------------------

    def wait(self, until: Callable[[], bool], within_s: float, what: str) -> None:
        """Handle reports until a condition holds; raises ``Hang`` after the limit."""
        deadline_s = time.monotonic() + within_s
        while not until():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise Hang(f"not within {within_s:g} s: {what}; {self.describe()}")
            self.handle(min(left_s, 0.2))

    def describe(self) -> str:
        """Return where every member is."""
        now_s = time.monotonic()
        return ", ".join(
            f"m{m.index} at {m.version} of {len(m.members)} members, "
            f"{now_s - m.stepped_s:.1f} s ago"
            for m in self.alive.values()
        )

    def handle(self, timeout_s: float) -> None:
        """Handle the reports that come within a time."""
        for key, _ in self._selector.select(timeout_s):
            member: Member = key.data
            try:
                found = member.sock.recv(1 << 16)
            except ConnectionResetError:
                found = b""
            if found:
                self._take(member, found)
            else:
                self._bury(member, time.monotonic())

    def _take(self, member: Member, found: bytes) -> None:
        *lines, member.unread = (member.unread + found).split(b"\n")
        for line in lines:
            report = json.loads(line)
            if report["event"] == "step":
                self._check(member, report)
            else:
                member.replies[report["event"]] = report

    def _check(self, member: Member, report: Report) -> None:
        version = int(report["version"])
        if version <= member.version:
            raise Failed(f"m{member.index}: step {version} after {member.version}")
        member.version, member.stepped_s = version, float(report["at_s"])
        member.members = list(report["members"])
        member.recent.append(Applied(member.stepped_s, frozenset(member.members)))
        weights = base64.b64decode(report["weights"])
        among = frozenset(member.members if self.is_split else ())
        first = self.weights.setdefault((among, version), weights)
        if weights != first:
            raise Failed(f"m{member.index} differs from others at version {version}")
        self.weights.pop((among, version - 50), None)
        difference = self.reference.difference(version, weights)
        if not difference <= self.reference.tolerance:
            text = f"differs by {difference} from the reference"
            raise Failed(f"m{member.index} at version {version} {text}")
        self.largest_difference = max(self.largest_difference, difference)
        self.checks += 1

    # -- what a test waits for ---------------------------------------------------------

    def wait_complete(self, within_s: float = 60.0) -> None:
        """Wait until all living members train together and have taken a step so."""
        size = len(self.alive)

        def is_complete() -> bool:
            lives = self.alive.values()
            return len(lives) == size and all(len(m.members) == size for m in lives)

        self.wait(is_complete, within_s, f"{size} members train together")

    def wait_for_step(
        self,
        after_s: float,
        among: Collection[Member],
        within_s: float = 60.0,
        without: Collection[str] = (),
    ) -> float:
        """Wait until these members have applied a step after a moment; return when
        the last of them did so first.

        Members of them that die meanwhile need not. A step counts when the nodes
        ``without`` which it was made are no members of the run any more.
        """

        def last_s() -> float:
            first = (m.first_step_s(after_s, without) for m in among if m.is_alive)
            return max(first, default=after_s)

        self.wait(lambda: last_s() < math.inf, within_s, "a step on every member")
        return last_s()

    def wait_for_death(self, member: Member, within_s: float) -> bool:
        """Return whether an armed member has killed itself within a time."""
        with contextlib.suppress(Hang):
            self.wait(lambda: not member.is_alive, within_s, "a kill")
        return not member.is_alive

    def ask(self, member: Member, kind: str, within_s: float = 60.0) -> Report:
        """Ask a member for its ``ledger`` or ``usage``."""
        member.replies.pop(kind, None)
        member.tell(**{kind: True})
        self.wait(lambda: kind in member.replies, within_s, f"the {kind}")
        return member.replies[kind]

    def wait_for_version(self, version: int, within_s: float = 600.0) -> None:
        """Wait until every member has made as many steps."""
        self.wait(
            lambda: all(m.version >= version for m in self.alive.values()),
            within_s,
            f"version {version}",
        )

    def check_ledger(self, member: Member | None = None) -> int:
        """Check that each sample was delivered once; return how many were."""
        found = self.ask(member or next(iter(self.alive.values())), "ledger")
        entries = sorted((e, b, end) for _, _, e, b, end in found["entries"])
        for (epoch, _, end), (next_epoch, begin, _) in itertools.pairwise(entries):
            follows = (epoch, end) if end < SAMPLES else (epoch + 1, 0)
            if (next_epoch, begin) != follows:
                text = f"{end} of epoch {epoch}, then {begin} of {next_epoch}"
                raise Failed(f"ledger: {text}")
        epochs, steps = divmod(int(found["version"]), -(-SAMPLES // GLOBAL_BATCH))
        wanted = epochs * SAMPLES + min(SAMPLES, steps * GLOBAL_BATCH)
        counted = sum(found["counts"].values())
        if counted != wanted:
            raise Failed(f"ledger: {counted} samples instead of {wanted}")
        return int(counted)
