"""A node for the doctor's tests: a real agent with the faults named on its argv.

``doctor_peer.py HOME NAME PORT [protocol=N] [clock=SECONDS] [link=garbled]``. It prints
one line when it accepts connections, and lives until it is killed.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from typing import NoReturn

from ringleader.errors import PeerUnreachable
from ringleader.ids import NodeId
from ringleader.node.agent import local_node
from ringleader.node.agent.process import run_agent
from ringleader.node.peering import link_probe
from ringleader.node.protocol import hello
from ringleader.node.protocol.agent_config import AgentConfig


def be_odd(word: str) -> None:
    """Speak another protocol version, shift the wall clock, or break off probes."""
    what, _, value = word.partition("=")
    if what == "protocol":
        hello.PROTOCOL = int(value)
        vars(local_node)["PROTOCOL"] = int(value)
    elif what == "clock":
        real, ahead_s = time.time, float(value)
        time.time = lambda: real() + ahead_s
    elif what == "link":
        vars(link_probe)["measure"] = garble
    else:
        raise ValueError(word)


def garble(
    raw: socket.socket, _: object, node: NodeId, *__: object, **___: object
) -> NoReturn:
    """Send what is no TLS, in place of a measurement."""
    with raw:
        raw.sendall(b"no record of TLS\n")
    raise PeerUnreachable(node, "its link was to be garbled")


def tell_when_open(ours: socket.socket) -> None:
    """Print a line when the agent's first message has arrived: it is up."""
    ours.recv(1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main() -> None:
    """Run the agent that ``AgentProcess.start`` would start."""
    home, name, port, *odd = sys.argv[1:]
    for word in odd:
        be_odd(word)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    threading.Thread(target=tell_when_open, args=(ours,), daemon=True).start()
    config = AgentConfig(home=home, name=name, port=int(port))
    sys.exit(asyncio.run(run_agent(theirs, config)))


if __name__ == "__main__":
    main()
