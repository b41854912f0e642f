"""Members of an elastic run as processes: the control plane without any training.

``MemberProcess`` starts one; the process itself runs ``main``. It prints each event as
a line of JSON with the time of the monotonic clock, which processes of one machine
share.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from ringleader.errors import RingleaderError
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.ids import NodeId
from ringleader.membership.member import Member, View, ViewId
from ringleader.testing.node_process import Event, NodeProcess
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_membership import RunMembership


class _Printer:
    """Hooks that print, and answer every freeze with the number of the freeze."""

    def __init__(self) -> None:
        self.membership: RunMembership | None = None
        self.num_freezes = 0
        self.answers = True

    def freeze(self, view_id: ViewId, members: tuple[Member, ...]) -> None:
        self.num_freezes += 1
        _print("freeze", counter=view_id.counter, members=_nodes(members))
        assert self.membership is not None
        if self.answers:
            self.membership.answer(view_id, str(self.num_freezes).encode())

    def install(self, view: View) -> None:
        _print(
            "install",
            counter=view.id.counter,
            leader=view.id.leader,
            members=_nodes(view.members),
            payloads=[p.decode() for p in view.payloads],
        )

    def ended(self, member: Member, promised: ViewId | None) -> None:
        _print("ended", node=member.node)

    def expelled(self, why: str) -> None:
        _print("expelled", why=why)

    def failed(self, error: RingleaderError) -> None:
        _print("failed", error=repr(error))


def _nodes(members: Sequence[Member]) -> list[str]:
    return [member.node for member in members]


def _print(event: str, **fields: object) -> None:
    line = json.dumps({"event": event, "at_s": time.monotonic(), **fields})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run ``run_member.py CREDENTIALS RUN PORT PEERS``; commands come on stdin."""
    file, run, port, peers = sys.argv[1:5]
    credentials = Credentials.from_file(Path(file))
    config = RunConfig(run=run, credentials=credentials, peers=peers, port=int(port))
    printer = _Printer()
    membership = printer.membership = RunMembership(config, printer)
    listening = membership.start()
    _print("up", port=listening, node=membership.me.node)
    commands: dict[str, Callable[[], None]] = {
        "refresh": membership.refresh,
        "leave": membership.close,
        "mute": lambda: setattr(printer, "answers", False),
        "troubles": lambda: _print("troubles", troubles=membership.troubles()),
    }
    for line in sys.stdin:
        command = line.strip()
        try:
            commands[command]()
        except RingleaderError as exc:
            _print("error", error=repr(exc))
        if command == "leave":
            break


class MemberProcess(NodeProcess):
    """A member of a run in a process of its own."""

    @classmethod
    def launch(
        cls,
        credentials: Path,
        run: str,
        peers: str = "",
        *,
        port: int = 0,
        prefix: Sequence[str] = (),
    ) -> Self:
        """Start a member; ``prefix`` is a command that enters a namespace."""
        words = [str(credentials), run, str(port), peers]
        argv = [*prefix, sys.executable, "-m", "ringleader.testing.run_member", *words]
        pipe = subprocess.PIPE
        member = cls(subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True))
        member.follow_output()
        return member

    def wait_for_view(self, nodes: Sequence[str], within_s: float = 120.0) -> Event:
        """Return the next view of exactly these nodes."""
        wanted = sorted(nodes)
        return self.wait(
            lambda e: e["event"] == "install" and sorted(e["members"]) == wanted,
            within_s,
        )

    def tell(self, command: str) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def kill(self) -> float:
        """Kill the process and return when that was."""
        at_s = time.monotonic()
        self.process.kill()
        return at_s


def issue_credentials(folder: Path, cluster: ClusterSecret) -> tuple[Path, NodeId]:
    """Write the credentials of a new node; return their file and the node."""
    issued = Credentials.issue(cluster, NodeKey.ephemeral())
    file = folder / f"{issued.node[:8]}.credentials"
    issued.to_file(file)
    return file, issued.node


if __name__ == "__main__":
    main()
