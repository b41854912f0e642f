"""A LAN on one machine: network namespaces as hosts, a bridge as the switch.

    with lan(hosts=4, rate="1gbit") as net:
        server = net.hosts[0].popen([sys.executable, "serve.py", net.hosts[0].address])

Each host is a namespace with one interface, ``eth0``. Its cable is a veth pair whose
other end is a port of a bridge, and the bridge lives in a namespace of its own: nothing
is added to the machine's own network, so addresses cannot collide with it, two LANs do
not see each other, and deleting the namespaces deletes everything. Linux, root and
iproute2 are needed; ``can_make_lan`` says whether and why not.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ringleader.errors import ConfigError, RingleaderError

MAX_HOSTS = 200
"""Addresses are 10.77.0.1 and up, and one byte counts the hosts."""

BURST_BYTES = 128 * 1024
"""How much tbf lets through at once. It must hold the largest packet that the kernel
hands over in one piece (64 KiB), and the bytes that fall due between two ticks of the
timer; more than that and small tensors would travel faster than the wire they test."""

QUEUE_MS = 50
"""How long a packet may wait before tbf drops it: 6 MB at 1 Gbit/s. Shorter, and the
streams that meet at the middle of a star lose packets and time out; longer, and nobody
would notice congestion at all."""

KILL_WAIT_S = 10.0
"""A killed process goes at once; only the kernel itself could keep it longer."""

_NAMES = re.compile(r"ringleader-(\d+)-[0-9a-f]+-(?:switch|host\d+)")


@dataclass(slots=True, eq=False)
class Host:
    """One machine of the LAN. Use it from one thread at a time."""

    name: str
    """Of its namespace."""

    address: str
    address6: str
    _started: list[subprocess.Popen[Any]] = field(default_factory=list)

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on this host."""
        return ["ip", "netns", "exec", self.name, *argv]

    def popen(
        self,
        argv: Sequence[str],
        **options: Any,  # noqa: ANN401 (those of subprocess.Popen, whatever they are)
    ) -> subprocess.Popen[Any]:
        """Start a process here; it is killed, if it still runs, when the LAN goes.

        ``pid`` is that of the program itself: ``ip netns exec`` replaces itself by it.
        """
        process = subprocess.Popen(self.command(argv), **options)
        self._started.append(process)
        return process

    def bytes_sent(self) -> int:
        """What has left by ``eth0``, headers included."""
        return self._counter("tx")

    def bytes_received(self) -> int:
        """What has come in by ``eth0``, headers included."""
        return self._counter("rx")

    def _counter(self, direction: str) -> int:
        text = _run("ip", "-n", self.name, "-j", "-s", "link", "show", "dev", "eth0")
        return int(json.loads(text)[0]["stats64"][direction]["bytes"])

    def kill_all(self) -> None:
        """End everything that runs here, what ``popen`` started and its children."""
        with suppress(RingleaderError):  # no namespace, no processes
            for pid in _run("ip", "netns", "pids", self.name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for process in self._started:
            process.kill()  # does nothing to one that has ended
            process.wait(timeout=KILL_WAIT_S)
        self._started.clear()


@dataclass(frozen=True, slots=True)
class Lan:
    """Hosts around one switch; ``lan`` makes and removes it."""

    switch: str
    """Name of the namespace of the bridge."""

    hosts: list[Host]

    def cut(self, index: int) -> None:
        """Pull the cable of a host at the switch: no reset, just silence."""
        _run("ip", "-n", self.switch, "link", "set", f"port{index}", "down")

    def mend(self, index: int) -> None:
        """Plug it in again."""
        _run("ip", "-n", self.switch, "link", "set", f"port{index}", "up")


def can_make_lan() -> tuple[bool, str]:
    """Whether this process can, and if not, why not."""
    if sys.platform != "linux":
        return False, f"network namespaces need Linux, this is {sys.platform}"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return False, f"{missing[0]} is not installed (package iproute2)"
    if os.geteuid() != 0:
        return False, "network namespaces need root"
    probe = _new_prefix() + "-switch"
    try:
        _run("ip", "netns", "add", probe)
        _limit(probe, "lo", "1gbit")
    except RingleaderError as error:
        return False, str(error)
    finally:
        _remove([probe])
    return True, "Linux, root and iproute2 are here"


@contextmanager
def lan(hosts: int, *, rate: str | None = None) -> Iterator[Lan]:
    """Make a LAN; both directions of every host are limited to ``rate`` (tc's units).

    Everything is gone afterwards, whatever happens inside. What a killed process left
    behind is removed by the next one that makes a LAN.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"lan: needs 1 to {MAX_HOSTS} hosts, got {hosts}")
    is_possible, reason = can_make_lan()
    if not is_possible:
        raise ConfigError(f"lan: cannot be made here: {reason}")
    _remove(_stale())
    prefix = _new_prefix()
    switch = f"{prefix}-switch"
    members = [
        Host(f"{prefix}-host{i}", f"10.77.0.{i + 1}", f"fd77::{i + 1:x}")
        for i in range(hosts)
    ]
    net = Lan(switch, members)
    try:
        _build(net, rate)
        yield net
    finally:
        for host in members:
            host.kill_all()
        _remove([switch, *(host.name for host in members)])


def _build(net: Lan, rate: str | None) -> None:
    _run("ip", "netns", "add", net.switch)
    _run("ip", "-n", net.switch, "link", "add", "bridge", "type", "bridge")
    # Without snooping the bridge floods multicast, as a plain switch at home does.
    with suppress(RingleaderError):  # an option that small kernels leave out
        _run(
            *("ip", "-n", net.switch, "link", "set", "bridge"),
            *("type", "bridge", "mcast_snooping", "0"),
        )
    _run("ip", "-n", net.switch, "link", "set", "bridge", "up")
    for index, host in enumerate(net.hosts):
        _plug(net.switch, index, host)
        if rate is not None:
            # tbf limits what leaves an interface: what the host sends at eth0, and
            # what it receives at the port of the switch.
            _limit(host.name, "eth0", rate)
            _limit(net.switch, f"port{index}", rate)


def _plug(switch: str, index: int, host: Host) -> None:
    """Make a host and its cable to the switch."""
    port = f"port{index}"
    _run("ip", "netns", "add", host.name)
    _run(
        *("ip", "link", "add", "name", "eth0", "netns", host.name),
        *("type", "veth", "peer", "name", port, "netns", switch),
    )
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", host.name, "link", "set", "lo", "up")
    _run("ip", "-n", host.name, "addr", "add", f"{host.address}/16", "dev", "eth0")
    with suppress(RingleaderError):  # a kernel without IPv6 is still a LAN
        _run(
            *("ip", "-n", host.name, "addr", "add", f"{host.address6}/64"),
            *("dev", "eth0", "nodad"),
        )
    _run("ip", "-n", host.name, "link", "set", "eth0", "up")
    # mDNS needs a way for multicast; a default route is one, and leads nowhere else.
    _run("ip", "-n", host.name, "route", "add", "default", "dev", "eth0")


def _limit(namespace: str, device: str, rate: str) -> None:
    _run(
        *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"),
        *("rate", rate, "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms"),
    )


def _new_prefix() -> str:
    return f"ringleader-{os.getpid()}-{secrets.token_hex(3)}"


def _stale() -> list[str]:
    """Namespaces of processes that are gone."""
    words = _run("ip", "netns", "list").split()
    found = [(word, _NAMES.fullmatch(word)) for word in words]
    return [word for word, match in found if match and not _is_alive(int(match[1]))]


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _remove(namespaces: Sequence[str]) -> None:
    """Delete what is there; the veth pairs and the bridge go with their namespaces."""
    for name in namespaces:
        if os.path.exists(f"/run/netns/{name}"):
            with suppress(RingleaderError):  # another process may have been quicker
                _run("ip", "netns", "delete", name)


def _run(*argv: str) -> str:
    """Run a command of iproute2, which is quick; its own words are the error.

    In a session of its own, so that a second Ctrl-C does not kill the cleaning up.
    """
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RingleaderError(f"lan: {' '.join(argv)}: {error}") from error
    if done.returncode:
        raise RingleaderError(f"lan: {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout
