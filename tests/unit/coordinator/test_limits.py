"""Fields of requests: each refusal is a sentence that names the field."""

from __future__ import annotations

import pytest

from ringleader.coordinator.client.channel import MAX_UPDATE_BYTES
from ringleader.coordinator.registry import limits
from ringleader.coordinator.registry.records import PeerChanges, Worker
from ringleader.coordinator.server.service import render
from ringleader.errors import ConfigError


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1:1", "host:65535", "a.b-c.example:80", "[::1]:7", "[fe80::1%eth0]:7"],
)
def test_addresses_that_are_accepted(address: str) -> None:
    assert limits.check_addresses([address, address]) == (address,)


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":1", "host:0", "host:65536", "host:01", "::1:7"),
        *("[::1]7", "[host]:1", "a b:1", "host:1\n", "-h:1", "x" * 254 + ":1"),
        *("h\u00f6st:1", "[fe80::1%" + "e" * 17 + "]:7"),
        *("[fe80::1%a,b]:7", "[fe80::1%a]b]:7", "[fe80::1%a\n]:7"),
    ],
)
def test_addresses_that_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        limits.check_addresses([address])


def test_other_fields_that_are_refused() -> None:
    def refused(text: str) -> pytest.RaisesExc[ConfigError]:
        return pytest.raises(ConfigError, match=text)

    with refused("addresses are missing"):
        limits.check_addresses([])
    with refused("17 addresses"):
        limits.check_addresses(f"h:{port}" for port in range(1, 18))
    with refused("namespace.key has 31 bytes"):
        limits.check_key(b"k" * 31)
    with refused("worker_id is missing"):
        limits.check_id("worker_id", "")
    for bad in ("x" * 129, "a b", "\x00", ".a", "a\n"):
        with refused("worker_id is "):
            limits.check_id("worker_id", bad)
    with refused("namespace.job"):
        limits.check_job("j" * 65)
    assert limits.check_job("") == ""
    with refused("step"):
        limits.check_step(2**53 + 1)
    for path in ("", "a\nb", "\u00f6" * 513):
        with refused("path"):
            limits.check_path(path)


def test_no_list_of_workers_comes_near_the_limit_of_a_message() -> None:
    """ZF-12: neither by its number of workers nor by what each of them says."""
    longest = tuple(f"{'h' * 250}.{n:02}:65535" for n in range(limits.MAX_ADDRESSES))
    most = [
        Worker(n, "w" * limits.MAX_ID, "1" * limits.MAX_ID, longest)
        for n in range(2000)
    ]
    messages = render(PeerChanges(1, is_snapshot=True, joined=tuple(most)))
    assert sum(len(each.joined) for each in messages) == len(most)
    assert sum(each.ByteSize() for each in messages) > MAX_UPDATE_BYTES
    assert max(each.ByteSize() for each in messages) < MAX_UPDATE_BYTES / 2
