"""Virtual LANs on one machine: network namespaces as hosts, a bridge as the switch.

    with lan(hosts=4, rate="1gbit") as net:
        server = net.hosts[0].popen([sys.executable, "serve.py", net.hosts[0].address])
        net.cut(0)

Each host is a namespace with one interface, ``eth0``. Its cable is a veth pair whose
other end is a port of a bridge, and the bridge has a namespace of its own: nothing is
added to the machine's own network, so addresses cannot collide with it, two LANs do not
see each other, and deleting the namespaces deletes everything. Common network faults
can be injected: cut, one-way and slow cables, partitions, firewalls, missing multicast,
a wrong MTU, VPN interfaces. ``long_cable`` connects two hosts with a delay. A LAN needs
Linux, root and iproute2; ``can_make_lan`` and ``can_make_faults`` tell whether this
process can make one, and if not, why.
"""

from __future__ import annotations

from ringleader.simulation.lan.ip_command import can_make_faults, can_make_lan
from ringleader.simulation.lan.long_cable import long_cable
from ringleader.simulation.lan.virtual_host import VirtualHost
from ringleader.simulation.lan.virtual_lan import VirtualLan, lan

__all__ = [
    "VirtualHost",
    "VirtualLan",
    "can_make_faults",
    "can_make_lan",
    "lan",
    "long_cable",
]
