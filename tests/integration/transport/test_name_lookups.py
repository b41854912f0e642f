"""``no_name_lookups`` on a host whose name server never answers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ringleader.simulation.lan import can_make_lan, lan

pytestmark = pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])

# Serves names on this host by never answering, and counts the questions.
PROGRAM = """
import json, socket, sys, time
from ringleader.transport.name_lookups import no_name_lookups

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
server.setblocking(False)

def look_up():
    try:
        return socket.getnameinfo(("::ffff:127.0.0.1", 80, 0, 0), 0)
    except OSError:
        return None

def questions():
    count = 0
    while True:
        try:
            server.recv(4096)
        except BlockingIOError:
            return count
        count += 1

with no_name_lookups("127.0.0.1"):
    with no_name_lookups("::1"):
        look_up()
    socket.getfqdn("somewhere")
numeric = questions()
look_up()
after = questions()
with no_name_lookups("master.local"):
    look_up()
print(json.dumps({"numeric": numeric, "after": after, "name": questions()}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_only_addresses_are_used_without_asking_a_name_server() -> None:
    with lan(hosts=1) as net:
        host = net.hosts[0]
        host.set_name_server(host.address, "timeout:1 attempts:1")
        process = host.popen(
            [sys.executable, "-c", PROGRAM, host.address],
            stdout=subprocess.PIPE,
            text=True,
        )
        found = json.loads(process.communicate(timeout=120)[0])
    assert found == {"numeric": 0, "after": 1, "name": 1}, found
