"""A record is believed if a member of the cluster made it, byte for byte."""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv6Interface, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.discovery.record import (
    MAX_TXT_BYTES,
    NodeRecord,
    RecordRefusal,
    addresses_on_networks,
    addresses_to_announce,
    decode,
    encode,
    is_genuine,
    new_label,
    sign,
)
from ringleader.topology.interfaces import Interface, InterfaceKind

KEY = bytes(range(32))
OTHER = bytes(32)
LABEL = "k7f3qabcdefgh234"

labels = st.binary(min_size=10, max_size=10).map(new_label)
ports = st.integers(1024, 65535)
ips = st.one_of(
    st.integers(0x01000000, 0xDFFFFFFF).map(ip_address),
    st.integers(0xFD << 120, (0xFE << 120) - 1).map(ip_address),
)
addresses = st.lists(ips.map(str), min_size=1, max_size=4, unique=True)


def text_of(**fields: str) -> bytes:
    parts = [f"{name}={value}".encode() for name, value in fields.items()]
    return b"".join(bytes([len(part)]) + part for part in parts)


@given(labels, ports, addresses)
def test_what_a_member_signed_is_read_and_believed(
    label: str, port: int, where: list[str]
) -> None:
    record = sign(label, port, where, KEY)
    text = encode(record)
    assert len(text) < MAX_TXT_BYTES
    assert decode(label, port, text) == record
    assert is_genuine(record, KEY)
    assert not is_genuine(record, OTHER)


def test_the_record_says_nothing_but_version_addresses_and_tag() -> None:
    record = sign(LABEL, 29600, ["10.77.0.2", "fd77::2"], KEY)
    text = encode(record)
    assert text == b"\x03v=1\x13a=10.77.0.2,fd77::2\x16t=43odnzes6mhpvs723x3q"


@given(st.data())
def test_one_changed_byte_and_nobody_believes_it(data: st.DataObject) -> None:
    record = sign(LABEL, 29600, ["10.77.0.2", "10.77.0.3", "fd77::2"], KEY)
    text = bytearray(encode(record))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    read = decode(LABEL, 29600, bytes(text))
    assert not isinstance(read, NodeRecord) or not is_genuine(read, KEY)


@given(labels, ports)
def test_label_and_port_are_under_the_tag(label: str, port: int) -> None:
    text = encode(sign(LABEL, 29600, ["10.77.0.2"], KEY))
    read = decode(label, port, text)
    assert isinstance(read, NodeRecord)
    assert is_genuine(read, KEY) == ((label, port) == (LABEL, 29600))


def test_four_addresses_of_ipv4_do_not_read_as_one_of_ipv6() -> None:
    fours = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
    packed = b"".join(ip_address(text).packed for text in fours)
    tag = sign(LABEL, 29600, fours, KEY).tag
    assert not is_genuine(
        NodeRecord(LABEL, 29600, (str(ip_address(packed)),), tag), KEY
    )


# Not all of Unicode: its tables take seconds to build.
strange = st.text(st.characters(max_codepoint=500), max_size=40)


@given(strange, st.integers(0, 65535), st.binary(max_size=600))
def test_arbitrary_bytes_are_refused_and_break_nothing(
    label: str, port: int, text: bytes
) -> None:
    read = decode(label, port, text)
    assert isinstance(read, RecordRefusal) or not is_genuine(read, KEY)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_arbitrary_fields_are_refused_and_break_nothing(parts: list[bytes]) -> None:
    named = [b"vat"[i % 3 : i % 3 + 1] + b"=" + part for i, part in enumerate(parts)]
    text = b"".join(bytes([len(part)]) + part for part in named)
    read = decode(LABEL, 29600, text)
    assert isinstance(read, RecordRefusal) or not is_genuine(read, KEY)


@pytest.mark.parametrize(
    "where",
    [
        "",
        "10.77.0.2,",
        "10.77.0.2,10.77.0.2",
        "10.77.0.1,10.77.0.2,10.77.0.3,10.77.0.4,10.77.0.5",
        "10.77.0.02",
        "0x0a.1",
        "2886729730",
        "FD77::2",
        "fd77:0::2",
        "fe80::1%eth0",
        "::ffff:10.77.0.2",
        "laptop.local",
        "10.77.0.2 ",
        "10.77.0.\u0662",
    ],
)
def test_an_address_has_one_spelling(where: str) -> None:
    tag = "43odnzes6mhpvs723x3q"
    assert (
        decode(LABEL, 29600, text_of(v="1", a=where, t=tag)) is RecordRefusal.MALFORMED
    )


@pytest.mark.parametrize("label", ["", "short", "UPPERCASE2", "a" * 33, "a.b.c.d.e.f"])
def test_a_label_is_eight_to_32_letters_and_digits(label: str) -> None:
    text = encode(sign(LABEL, 29600, ["10.77.0.2"], KEY))
    assert decode(label, 29600, text) is RecordRefusal.MALFORMED


@pytest.mark.parametrize("port", [0, 22, 80, 1023, 65536])
def test_no_port_of_the_system_is_dialled(port: int) -> None:
    text = encode(sign(LABEL, 29600, ["10.77.0.2"], KEY))
    assert decode(LABEL, port, text) is RecordRefusal.MALFORMED


def test_another_version_is_told_from_nonsense() -> None:
    assert decode(LABEL, 29600, text_of(v="2", x="new")) is RecordRefusal.OTHER_VERSION
    assert decode(LABEL, 29600, text_of(a="10.0.0.1")) is RecordRefusal.MALFORMED


def test_fields_of_later_versions_are_left_alone() -> None:
    text = encode(sign(LABEL, 29600, ["10.77.0.2"], KEY)) + text_of(z="later")
    read = decode(LABEL, 29600, text)
    assert isinstance(read, NodeRecord)
    assert is_genuine(read, KEY)


def card(name: str, *addresses: str) -> Interface:
    own = tuple(IPv6Interface(a) if ":" in a else IPv4Interface(a) for a in addresses)
    return Interface(name=name, kind=InterfaceKind.ETHERNET, addresses=own)


def test_only_addresses_on_our_networks_are_dialled() -> None:
    where = ["10.77.0.2", "192.168.1.1", "fd77::2", "2001:db9::1"]
    record = sign(LABEL, 29600, where, KEY)
    chosen = [card("eth0", "10.77.0.1/16"), card("eth1", "fd77::1/64")]
    assert addresses_on_networks(record, chosen) == ("10.77.0.2", "fd77::2")
    assert addresses_on_networks(record, []) == ()


def test_every_interface_is_announced_before_any_says_more() -> None:
    crowded = card("eth0", "10.0.0.1/8", "10.0.0.2/8", "10.0.0.3/8", "fd01::1/64")
    other = card("eth1", "192.168.1.1/24", "fd02::1/64")
    where = addresses_to_announce([crowded, other])
    assert where == ["10.0.0.1", "192.168.1.1", "fd01::1", "fd02::1"]
    assert addresses_to_announce([]) == []
