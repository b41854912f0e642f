"""Network namespaces count as separate hosts, and a dial never reaches itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ringleader.simulation.lan import can_make_lan
from ringleader.transport.host_token import host_token

IS_POSSIBLE, REASON = can_make_lan()
pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason=f"no namespaces here: {REASON}")

TOKEN = (
    "from ringleader.transport.host_token import host_token; print(host_token().hex())"
)

# Two ephemeral ports, one of them dialled: the kernel soon picks it for our own end.
MEETS_ITSELF = """
from pathlib import Path
from ringleader.deadline import Deadline
from ringleader.errors import PeerUnreachable
from ringleader.transport import tcp_socket

Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40001")
for port in (40000, 40001):
    try:
        tcp_socket.dial(("127.0.0.1", port), 1, Deadline.after(1.0))
    except PeerUnreachable as exc:
        print(exc)
    else:
        print("met itself")
"""


def _run(code: str, *prefix: str) -> str:
    argv = [*prefix, sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_processes_in_one_namespace_share_a_host() -> None:
    assert _run(TOKEN).strip() == host_token().hex()


def test_another_network_namespace_is_another_host() -> None:
    theirs = _run(TOKEN, "unshare", "--net").strip()
    assert len(theirs) == 32
    assert theirs != host_token().hex()


def test_a_dial_to_a_port_without_listener_does_not_meet_itself() -> None:
    prefix = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    lines = _run(MEETS_ITSELF, *prefix).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("rank 1: 127.0.0.1:4000"), line
        assert "did not answer within 1.0 s" in line
