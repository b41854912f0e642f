"""What an agent makes of its coordinator's words, and of its silence."""

from __future__ import annotations

import pytest

from ringleader.coordinator.client.peer_list import Peer
from ringleader.coordinator.client.unavailable import is_about_trust, reason
from ringleader.errors import PeerRefused, PeerUnreachable, PeerUntrusted
from ringleader.identity.secret_value import Secret
from ringleader.node.peering.coordinator_link import MAX_WORKERS, CoordinatorLink


def link(events: list[str], address: str = "10.0.0.9:7070") -> CoordinatorLink:
    return CoordinatorLink(
        address,
        "me",
        Secret(bytes(32)),
        None,
        lambda _: [],
        lambda: None,
        events.append,
    )


def peer(rank: int, worker_id: str, *addresses: str) -> Peer:
    return Peer(rank, worker_id, "1", addresses)


def test_only_ip_addresses_of_other_workers_are_hints() -> None:
    made = link([])
    made._on_peers(
        {
            0: peer(0, "me", "10.0.0.1:1"),
            1: peer(
                1, "a", "10.0.0.2:1", "evil.example:2", "127.0.0.1:3", "[fd00::2]:4"
            ),
            2: peer(2, "b", "224.0.0.1:1"),
        }
    )
    assert made.others == {"a": [("10.0.0.2", 1), ("fd00::2", 4)], "b": []}
    here = link([], "localhost:7070")
    here._on_peers({1: peer(1, "a", "127.0.0.1:3")})
    assert here.others == {"a": [("127.0.0.1", 3)]}


def test_the_number_of_hints_is_bounded() -> None:
    made = link([])
    made._on_peers({i: peer(i, f"w{i}", "10.0.0.2:1") for i in range(500)})
    assert len(made.others) == MAX_WORKERS


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PeerUnreachable("coordinator", "refused"), "does not answer"),
        (PeerUntrusted("coordinator", "other CA"), "cannot be trusted"),
        (PeerRefused("coordinator", "full"), "refuses this machine"),
    ],
)
def test_a_lost_coordinator_is_told_once_with_the_time(
    error: PeerUnreachable, words: str
) -> None:
    events: list[str] = []
    made = link(events)
    assert made.trouble == ""
    made._on_trouble(error)
    first = made.trouble
    made._on_trouble(error)
    assert made.trouble == first
    assert first.startswith(f"coordinator 10.0.0.9:7070 {words} since ")
    assert first.endswith(error.text)
    made._on_trouble(None)
    assert made.trouble == ""
    assert events == [
        f"coordinator 10.0.0.9:7070 {words}: {error.text}",
        "coordinator 10.0.0.9:7070 answers again",
    ]


@pytest.mark.parametrize(
    ("details", "words"),
    [
        (
            "last error: ipv4:1.2.3.4:5: connect: Connection refused (111)",
            "nothing listens",
        ),
        ("errors resolving x:5: [field:hostname lookup error]", "cannot be resolved"),
        ("last error: No route to host", "no route"),
        ("connect: Connection timed out", "firewall"),
        ("ipv4:10.77.0.200:7070: tcp handshaker shutdown", "firewall"),
        ("Handshake read failed (Endpoint closing)", "firewall"),
        ("Socket closed", "broke"),
        ("something else " * 50, "something else"),
    ],
)
def test_reasons_of_grpc_in_words(details: str, words: str) -> None:
    assert words in reason(details)
    assert len(reason(details)) <= 200
    assert not is_about_trust(details)


def test_a_handshake_that_fails_is_about_trust() -> None:
    details = "Tls handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED"
    assert is_about_trust(details)
