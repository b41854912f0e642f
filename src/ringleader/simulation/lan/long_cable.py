"""A long cable: two hosts of a LAN get a link with a delay, as between two cities.

    with lan(hosts=2) as net, long_cable(*net.hosts, round_trip_s=0.04) as addresses:
        net.hosts[0].popen([sys.executable, "serve.py", addresses[0]])

The kernel's own way to delay packets, netem, is missing in many kernels. Here each host
gets a TUN interface, and a process (cable_carrier.py) carries the packets between them:
at a limited rate, later, and with a short queue in front of the cable, which drops what
does not fit, as a router does. Jumbo frames let Python keep up with 1 Gbit/s.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ringleader.errors import ConfigError
from ringleader.simulation.lan import cable_carrier
from ringleader.simulation.lan.cable_carrier import DEVICE, MTU
from ringleader.simulation.lan.ip_command import ip
from ringleader.simulation.lan.virtual_host import WAIT_S, VirtualHost

ADDRESSES = ("10.78.0.1", "10.78.0.2")
NETWORK = "10.78.0.0/24"


@contextmanager
def long_cable(
    one: VirtualHost,
    other: VirtualHost,
    *,
    round_trip_s: float,
    mbit_s: int = 1000,
    congestion: str | None = None,
) -> Iterator[tuple[str, str]]:
    """Connect two hosts until the end of the block; yields the address of each.

    ``congestion`` names what decides how fast TCP sends, such as ``cubic``; None is
    what this kernel takes by itself.
    """
    argv = [sys.executable, "-I", "-S", cable_carrier.__file__, one.name, other.name]
    argv += [str(round_trip_s / 2), str(mbit_s)]
    carrier = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert carrier.stdout is not None
    try:
        with carrier.stdout as output:
            is_ready = bool(select.select([output], [], [], WAIT_S)[0])
            if not is_ready or output.readline() != "ready\n":
                text = f"lan: cannot open {DEVICE}; does /dev/net/tun exist?"
                raise ConfigError(text)
        for host, address in zip((one, other), ADDRESSES, strict=True):
            ip(host.name, "address", "add", f"{address}/24", "dev", DEVICE)
            ip(host.name, "link", "set", DEVICE, "mtu", str(MTU), "up")
            if congestion is not None:
                by = ("src", address, "congctl", congestion)
                ip(host.name, "route", "replace", NETWORK, "dev", DEVICE, *by)
        yield ADDRESSES
    finally:
        carrier.kill()
        carrier.wait(timeout=WAIT_S)
