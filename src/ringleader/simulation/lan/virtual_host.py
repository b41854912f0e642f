"""VirtualHost: a namespace with its processes, interfaces and firewall."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_interface
from typing import Any

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, RingleaderError
from ringleader.simulation.lan.ip_command import ip, run, set_hosts, set_name_server
from ringleader.simulation.lan.switch import RECEIVED, Cable, Fault, Switch

WAIT_S = 10.0
"""Limit for a killed process to end or a small one to start, both of which take
milliseconds."""

POLL_S = 0.02

_TUNNELS = re.compile(r"(tun|tap|utun|wg|ppp|tailscale|zt)")
_BRIDGES = re.compile(r"(docker|br-|virbr|podman|lxc)")
_NUMBERS = {"tcp": 6, "udp": 17}

# A tunnel is up only as long as a process holds its other end.
_HOLD_TUNNEL = """
import fcntl, os, signal, struct, sys
flags = 0x1001 if not sys.argv[1].startswith("tap") else 0x1002
end = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(end, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), flags))
print("ready", flush=True)
signal.pause()
"""


@dataclass(slots=True, eq=False)
class VirtualHost:
    """One host of the LAN. Not thread-safe."""

    name: str
    """Name of its namespace."""

    address: str
    address6: str
    number: int
    """Index in ``VirtualLan.hosts``."""

    _switch: Switch
    _cables: dict[str, Cable] = field(default_factory=dict)
    _started: list[subprocess.Popen[Any]] = field(default_factory=list)

    def build(self) -> None:
        """Create the namespace and its ``eth0``; called by ``lan``."""
        run("ip", "netns", "add", self.name)
        set_name_server(self.name, "127.0.0.1")  # look-ups fail at once
        ip(self.name, "link", "set", "lo", "up")
        self._plug("eth0", f"{self.address}/16")
        with suppress(RingleaderError):  # a kernel without IPv6 is still a LAN
            self._add_address("eth0", f"{self.address6}/64")
        # mDNS needs a route for multicast: a default route without a gateway.
        ip(self.name, "route", "add", "default", "dev", "eth0")

    # -- processes ---------------------------------------------------------------

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on this host."""
        return ["ip", "netns", "exec", self.name, *argv]

    def popen(
        self,
        argv: Sequence[str],
        **options: Any,  # noqa: ANN401 (those of subprocess.Popen, whatever they are)
    ) -> subprocess.Popen[Any]:
        """Start a process on this host; it is killed when the LAN is removed.

        Its ``pid`` is that of the program: ``ip netns exec`` replaces itself by it.
        """
        process = subprocess.Popen(self.command(argv), **options)
        self._started.append(process)
        return process

    def kill_all(self) -> None:
        """Kill everything that runs here: what ``popen`` started, and its children."""
        with suppress(RingleaderError):  # no namespace, no processes
            for pid in run("ip", "netns", "pids", self.name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for process in self._started:
            process.kill()  # does nothing to one that has ended
            process.wait(timeout=WAIT_S)
        self._started.clear()

    # -- interfaces --------------------------------------------------------------

    def bytes_sent(self, device: str = "eth0") -> int:
        """Number of bytes an interface has sent, headers included."""
        return self._counter("tx", device)

    def bytes_received(self, device: str = "eth0") -> int:
        """Number of bytes an interface has received, headers included."""
        return self._counter("rx", device)

    def add_interface(self, name: str, address: str) -> None:
        """Add an interface with an address like ``10.88.0.1/24`` and bring it up.

        The name decides its kind: ``tun0``, ``wg0`` ... are tunnels without a peer,
        ``docker0``, ``br-...``, ``virbr0`` are bridges with one port, and all others
        are cables to a switch per network, shared by the hosts in that network.
        """
        if _TUNNELS.match(name):
            self._add_tunnel(name)
        elif _BRIDGES.match(name):
            self._add_bridge(name)
        else:
            self._plug(name, address)
            return
        self._add_address(name, address)
        ip(self.name, "link", "set", name, "up")
        self._wait_until_running(name)

    def set_up(self, device: str = "eth0", *, is_up: bool) -> None:
        """Set an interface up or down on the host; down, it loses its routes."""
        ip(self.name, "link", "set", device, "up" if is_up else "down")

    def only_ipv4(self, device: str = "eth0") -> None:
        """Disable IPv6 on an interface, including its link-local address."""
        path = f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6"
        with suppress(RingleaderError):  # a kernel without IPv6 needs no change
            run(*self.command(["sh", "-c", f"echo 1 > {path}"]))

    def only_ipv6(self, device: str = "eth0") -> None:
        """Remove all IPv4 addresses of an interface."""
        ip(self.name, "-4", "address", "flush", "dev", device)

    def set_mtu(self, mtu: int, device: str = "eth0") -> None:
        """Set the MTU of an interface; below 1280 there is no IPv6."""
        cable = self._cables.get(device)
        if cable is not None and mtu > cable.mtu:  # jumbo frames, also at the switch
            cable.mtu = mtu
            self._switch.set_mtu(cable, mtu)
        ip(self.name, "link", "set", device, "mtu", str(mtu))

    def set_name_server(self, address: str, options: str = "") -> None:
        """Let processes that start from now on ask ``address`` for names."""
        set_name_server(self.name, address, options)

    def name_is_loopback(self) -> None:
        """Let the host name resolve to 127.0.1.1, as Debian's installer sets it up."""
        own = f"127.0.1.1 {socket.gethostname()}"
        set_hosts(self.name, ["127.0.0.1 localhost", own])

    # -- firewall ----------------------------------------------------------------

    def block_port(self, port: int, protocol: str = "tcp") -> None:
        """Silently drop what arrives for a port, on all cables."""
        if protocol not in _NUMBERS:
            raise ConfigError(f"lan: unknown protocol {protocol!r}; use tcp or udp")
        ways = [
            f"protocol {family} u32 match {prefix} protocol {_NUMBERS[protocol]} 0xff"
            f" match {prefix} dport {port} 0xffff"
            for family, prefix in (("ip", "ip"), ("ipv6", "ip6"))
        ]
        rules = [(c, RECEIVED, way) for c in self._cables.values() for way in ways]
        self._switch.drop(("block", self.number, port, protocol), rules)

    def block_high_ports(self) -> None:
        """Drop new TCP connections to ports from 32768 up, as a firewall would.

        Connections that this host opens are not affected.
        """
        self._drop_new(("high ports", self.number), ["dport 0x8000 0x8000"])

    def accept_only(self, port: int) -> None:
        """Drop new TCP connections to all ports but one; to all if it is 0.

        Connections that this host opens are not affected.
        """
        # Another port differs from it in one of its bits.
        others = [f"dport {~port & 1 << bit:#x} {1 << bit:#x}" for bit in range(16)]
        self._drop_new(("accept only", self.number), others)

    def _drop_new(self, fault: Fault, matches: Sequence[str]) -> None:
        ways = [
            f"protocol {family} u32 match {prefix} protocol {_NUMBERS['tcp']} 0xff"
            f" match {prefix} {match}"
            f" match u8 0x02 0x12 at {flags}"  # SYN without ACK
            for family, prefix, flags in (("ip", "ip", 33), ("ipv6", "ip6", 53))
            for match in matches
        ]
        rules = [(c, RECEIVED, way) for c in self._cables.values() for way in ways]
        self._switch.drop(fault, rules)

    def unblock_high_ports(self) -> None:
        """Undo ``block_high_ports``."""
        self._switch.undrop(("high ports", self.number))

    def unblock_port(self, port: int, protocol: str = "tcp") -> None:
        """Undo ``block_port``."""
        self._switch.undrop(("block", self.number, port, protocol))

    # ----------------------------------------------------------------------------

    def cable(self, device: str = "eth0") -> Cable:
        """Return the cable of an interface; raises ConfigError if it has none."""
        if device not in self._cables:
            raise ConfigError(f"lan: {device} of host {self.number} has no cable")
        return self._cables[device]

    def cables(self) -> list[Cable]:
        return list(self._cables.values())

    def _plug(self, device: str, address: str) -> None:
        network = str(ip_interface(address).network)
        cable = self._switch.plug(self.name, device, network, self.number)
        self._cables[device] = cable
        self._add_address(device, address)

    def _add_address(self, device: str, address: str) -> None:
        # Duplicate address detection would delay an IPv6 address by a second.
        flags = ["nodad"] if ":" in address else []
        ip(self.name, "address", "add", address, "dev", device, *flags)

    def _add_bridge(self, name: str) -> None:
        ip(self.name, "link", "add", name, "type", "bridge")
        port = self._switch.add_stub(self.name)
        ip(self.name, "link", "set", port, "master", name, "up")

    def _add_tunnel(self, name: str) -> None:
        argv = [sys.executable, "-I", "-S", "-c", _HOLD_TUNNEL, name]
        holder = self.popen(argv, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        with holder.stdout as output:
            is_ready = bool(select.select([output], [], [], WAIT_S)[0])
            if not is_ready or output.readline() != "ready\n":
                raise ConfigError(
                    f"lan: cannot open tunnel {name}; does /dev/net/tun exist?"
                )

    def _wait_until_running(self, name: str) -> None:
        """Wait for the kernel, which checks a bridge's ports only once a second."""
        deadline = Deadline.after(WAIT_S)
        while json.loads(ip(self.name, "-j", "link", "show", name))[0]["operstate"] in (
            "DOWN",
            "LOWERLAYERDOWN",
        ):
            if deadline.is_over():
                raise DeadlineExceeded(name, f"lan: not up after {WAIT_S:g} s")
            time.sleep(POLL_S)

    def _counter(self, direction: str, device: str) -> int:
        text = ip(self.name, "-j", "-s", "link", "show", "dev", device)
        return int(json.loads(text)[0]["stats64"][direction]["bytes"])
