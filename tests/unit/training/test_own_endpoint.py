"""What a member of a run tells of its addresses, also when they change."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from ringleader.errors import ConfigError
from ringleader.training.own_endpoint import OwnEndpoint
from ringleader.transport.shared_listener import ListenerLease

HOME, CAFE, VPN = "192.168.1.5", "10.0.0.7", "100.64.0.2"


class Certificate:
    """Credentials for some addresses."""

    node = "n" * 52

    def __init__(self, *names: str) -> None:
        self._names = names

    def announceable(self, hosts: Sequence[str]) -> tuple[str, ...]:
        found = tuple(host for host in hosts if host in self._names)
        if not found:
            raise ConfigError(f"not for {hosts}")
        return found


def lease(certificate: Certificate) -> ListenerLease:
    listener = SimpleNamespace(credentials=certificate, port=29600)
    return cast("ListenerLease", SimpleNamespace(listener=listener, channel=1))


@pytest.mark.parametrize(
    ("configured", "after"),
    [
        ((), [CAFE, VPN]),
        ((HOME,), [CAFE, VPN]),
        ((HOME, VPN), [VPN]),
        (("laptop.lan",), ["laptop.lan"]),
        ((HOME, "router.example"), ["router.example"]),
    ],
    ids=["found", "lost", "one is left", "a name", "lost beside a name"],
)
def test_lost_addresses_are_replaced(
    configured: tuple[str, ...], after: list[str]
) -> None:
    addresses = [HOME, VPN]
    everything = Certificate(HOME, CAFE, VPN, "laptop.lan", "router.example")
    endpoint = OwnEndpoint(lease(everything), configured, lambda: addresses)
    assert list(endpoint.hosts()) == list(configured or addresses)
    before = endpoint.read()
    addresses[:] = [CAFE, VPN]
    assert list(endpoint.hosts()) == after
    assert (endpoint.read() == before) == (after == list(configured))


def test_on_the_way_between_networks_the_last_endpoint_stays() -> None:
    """No address is in the certificate then, and the member must not end."""
    addresses = [HOME]
    endpoint = OwnEndpoint(lease(Certificate(HOME)), (), lambda: addresses)
    before = endpoint.read()
    addresses[:] = ["127.0.0.1"]
    assert endpoint.read() == before
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1"):
        OwnEndpoint(lease(Certificate(HOME)), (), lambda: addresses)
