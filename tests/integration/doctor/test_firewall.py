"""The rule that the doctor names, added to a real firewall, lets a connection in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.geteuid() != 0,
        reason="needs root on Linux, for a network namespace",
    ),
]

PROGRAM = """
import os, socket, subprocess
from ringleader.doctor.firewall_command import allow
from ringleader.doctor.local_firewall import local_firewall
from ringleader.transport.listening_socket import listen

subprocess.run("ip link set lo up", shell=True, check=True)
assert local_firewall() is None
subprocess.run(os.environ["DROP"], shell=True, check=True)
firewall = local_firewall()
waiting = listen("127.0.0.1", range(29600, 29604))
address = waiting.getsockname()

def reaches(limit_s):
    try:
        socket.create_connection(address, limit_s).close()
    except TimeoutError:
        return False
    return True

before = reaches(1)
command = allow(firewall, [range(29471, 29472), range(29600, 29604)], "127.0.0.0/8")
subprocess.run(command.removeprefix("sudo "), shell=True, check=True)
print(firewall.kind, before, reaches(60))
"""
# What answers us must come in, or the dialer would not see its own connection open.
NFT = """
nft add table inet mine
nft 'add chain inet mine in { type filter hook input priority 0; policy drop; }'
nft add rule inet mine in tcp flags '& (syn | ack)' '!=' syn accept
"""
IPTABLES = """
iptables -P INPUT DROP
iptables -A INPUT -p tcp ! --syn -j ACCEPT
"""


@pytest.mark.parametrize(
    ("program", "drop"), [("nft", NFT), ("iptables", IPTABLES)], ids=["nft", "iptables"]
)
def test_the_rule_lets_a_connection_in(program: str, drop: str) -> None:
    """nftables also shows the rules of today's iptables, as its own."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", PROGRAM],
        env={**os.environ, "DROP": drop},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    kind, before, after = done.stdout.split() or ("", "", done.stderr)
    assert kind in {"nftables", program}, after
    assert (before, after) == ("False", "True")
