"""Which interfaces carry a cluster, on tables as Linux, macOS and Windows show them."""

from __future__ import annotations

import socket
from ipaddress import IPv4Interface, IPv6Interface, ip_address
from typing import NamedTuple

import pytest

from ringleader.errors import ConfigError
from ringleader.topology.interface_kind import InterfaceKind, kind_of
from ringleader.topology.interfaces import (
    Interface,
    best_first,
    choose_interfaces,
    from_tables,
    interface_towards,
    kind_of_peer,
    list_interfaces,
)

NORMAL = "up,broadcast,running,multicast"
LINE = "up,pointopoint,running,multicast"


class Entry(NamedTuple):
    """An address as psutil tells it."""

    family: int
    address: str
    netmask: str | None


class Stats(NamedTuple):
    """The facts of an interface as psutil tells them."""

    isup: bool = True
    speed: int = 0
    mtu: int = 1500
    flags: str = NORMAL


def four(address: str, prefix: int = 24) -> Entry:
    mask = IPv4Interface(f"0.0.0.0/{prefix}").netmask
    return Entry(socket.AF_INET, address, str(mask))


def six(address: str, prefix: int | None = 64) -> Entry:
    mask = None if prefix is None else str(IPv6Interface(f"::/{prefix}").netmask)
    return Entry(socket.AF_INET6, address, mask)


HARDWARE = Entry(-1, "02:fc:00:00:00:01", None)

LINUX = {
    "lo": ([four("127.0.0.1", 8), six("::1", 128)], Stats(flags="up,loopback")),
    "enp3s0": (
        [HARDWARE, four("192.168.1.5"), six("fd12::5"), six("fe80::5%enp3s0")],
        Stats(speed=1000),
    ),
    "wlp4s0": ([four("192.168.1.77"), six("2001:db9::77")], Stats()),
    "docker0": ([four("172.17.0.1", 16)], Stats()),
    "br-3fa1": ([four("172.18.0.1", 16)], Stats()),
    "veth12ab": ([six("fe80::1%veth12ab")], Stats()),
    "virbr0": ([four("192.168.122.1")], Stats()),
    "tailscale0": ([four("100.101.102.103", 32)], Stats(flags=LINE)),
    "wg0": ([four("10.8.0.2")], Stats(flags=LINE)),
    "tun0": ([four("10.9.0.2")], Stats(flags=LINE)),
    "enp5s0": ([four("10.0.0.2")], Stats(isup=False)),
    "eth7": ([HARDWARE], Stats()),
}
MAC = {
    "lo0": ([four("127.0.0.1", 8)], Stats(flags="up,loopback,running,multicast")),
    "en0": ([four("192.168.1.9"), six("fe80::9%en0"), six("fd12::9")], Stats()),
    "en5": ([four("169.254.10.1", 16)], Stats()),
    "bridge0": ([four("169.254.99.1", 16)], Stats()),
    "bridge100": ([four("192.168.64.1")], Stats()),
    "awdl0": ([six("fe80::2%awdl0")], Stats()),
    "llw0": ([four("169.254.3.3", 16)], Stats()),
    "utun3": ([four("100.64.1.2", 32)], Stats(flags=LINE)),
    "vmnet8": ([four("172.16.5.1")], Stats()),
}
WINDOWS = {
    "Loopback Pseudo-Interface 1": ([four("127.0.0.1", 8)], Stats(flags="")),
    "Ethernet": ([four("192.168.1.20"), six("fd12::20", None)], Stats(flags="")),
    "Wi-Fi": ([four("192.168.1.21")], Stats(flags="")),
    "Local Area Connection* 3": ([four("169.254.1.1", 16)], Stats(False, flags="")),
    "vEthernet (WSL)": ([four("172.20.0.1", 20)], Stats(flags="")),
    "VirtualBox Host-Only Network": ([four("192.168.56.1")], Stats(flags="")),
    "Tailscale": ([four("100.64.7.7", 32)], Stats(flags="")),
}


def read(
    table: dict[str, tuple[list[Entry], Stats]], system: str, default: str = ""
) -> list[Interface]:
    return from_tables(
        {name: addresses for name, (addresses, _) in table.items()},
        {name: stats for name, (_, stats) in table.items()},
        defaults={ip_address(default)} if default else (),
        system=system,
    )


def names(chosen: list[Interface]) -> list[str]:
    return [interface.name for interface in chosen]


def test_linux_chooses_the_cards_and_the_default_route_first() -> None:
    found = read(LINUX, "linux", default="192.168.1.77")
    chosen, refused = choose_interfaces(found)
    assert names(chosen) == ["wlp4s0", "enp3s0"]
    assert {i.name for i, _ in refused} == LINUX.keys() - {"wlp4s0", "enp3s0"}
    why = {i.name: text for i, text in refused}
    assert "VPN" in why["tun0"]
    assert "VPN" in why["tailscale0"]
    assert "virtual" in why["docker0"]
    assert "down" in why["enp5s0"]
    assert "no address" in why["eth7"]
    assert "loopback" in why["lo"]


def test_a_mac_chooses_its_thunderbolt_cables_last() -> None:
    chosen, refused = choose_interfaces(read(MAC, "darwin", default="192.168.1.9"))
    assert names(chosen) == ["en0", "en5", "bridge0"]
    kinds = [interface.kind for interface in chosen]
    assert kinds[1:] == [InterfaceKind.THUNDERBOLT, InterfaceKind.THUNDERBOLT]
    why = {i.name: text for i, text in refused}
    assert "Apple" in why["llw0"]
    assert "virtual" in why["bridge100"]


def test_windows_has_no_flags_and_no_masks_for_ipv6() -> None:
    chosen, _ = choose_interfaces(read(WINDOWS, "win32"))
    assert names(chosen) == ["Ethernet", "Wi-Fi"]
    assert [i.kind for i in chosen] == [InterfaceKind.ETHERNET, InterfaceKind.WIFI]
    assert IPv6Interface("fd12::20/64") in chosen[0].addresses


def test_the_chosen_keep_only_addresses_that_others_can_use() -> None:
    table = {
        "eth0": (
            [
                four("192.168.1.5"),
                four("8.8.4.4"),
                four("10.0.0.1", 31),
                six("2001:db9::5"),
                six("fd12::5"),
                six("fe80::5%eth0"),
                six("fd13::5", 128),
            ],
            Stats(),
        )
    }
    chosen, _ = choose_interfaces(read(table, "linux"))
    texts = [str(address) for address in chosen[0].addresses]
    assert texts == ["192.168.1.5/24", "fd12::5/64", "2001:db9::5/64"]


def test_a_host_without_ipv4_is_chosen_by_ipv6() -> None:
    alone = {"eth0": ([six("fe80::1%eth0"), six("fd12::1")], Stats())}
    assert names(choose_interfaces(read(alone, "linux"))[0]) == ["eth0"]
    local = {"eth0": ([six("fe80::1%eth0")], Stats())}
    chosen, refused = choose_interfaces(read(local, "linux"))
    assert not chosen
    assert "no address" in refused[0][1]


def test_a_public_address_is_not_announced_unless_it_is_asked_for() -> None:
    table = {"eth0": ([four("192.0.2.2"), six("fd00::2")], Stats())}
    found = read(table, "linux")
    chosen, refused = choose_interfaces(found)
    assert not chosen
    assert "192.0.2.2" in refused[0][1]
    assert "name it" in refused[0][1]
    (forced,), _ = choose_interfaces(found, ["eth0"])
    assert [str(a.ip) for a in forced.addresses] == ["192.0.2.2", "fd00::2"]


def test_the_user_may_name_an_interface_and_gets_no_other() -> None:
    found = read(LINUX, "linux")
    chosen, refused = choose_interfaces(found, ["docker0", "lo"])
    assert names(chosen) == ["lo", "docker0"]
    assert ("wlp4s0", "is not among the requested interfaces") in [
        (i.name, why) for i, why in refused
    ]
    assert not choose_interfaces(found, ["enp5s0"])[0], "down is down"


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"'eth9'.*docker0.*wlp4s0"):
        choose_interfaces(read(LINUX, "linux"), ["eth9"])


def test_without_multicast_or_with_one_other_end_an_interface_is_left_out() -> None:
    table = {
        "eth0": ([four("10.0.0.1")], Stats(flags="up,broadcast,running")),
        "eth1": ([four("10.0.1.1")], Stats(flags=LINE)),
    }
    assert not choose_interfaces(read(table, "linux"))[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lo", "loopback"),
        ("eth0", "ethernet"),  # also where the driver says veth
        ("eth0.10", "ethernet"),
        ("enp0s31f6", "ethernet"),
        ("usb0", "ethernet"),
        ("ax0", "ethernet"),
        ("bond0", "ethernet"),
        ("wlan0", "wifi"),
        ("wifi0", "wifi"),
        ("awdl0", "wifi"),
        ("thunderbolt0", "thunderbolt"),
        ("veth0abc", "virtual"),
        ("br-0a1b", "virtual"),
        ("br0", "virtual"),
        ("vmbr0", "virtual"),
        ("cni0", "virtual"),
        ("dummy0", "virtual"),
        ("ifb1", "virtual"),
        ("tap0", "vpn"),
        ("ztabc123", "vpn"),
        ("ppp0", "vpn"),
        ("My VPN", "vpn"),
        ("quux", "unknown"),
    ],
)
def test_the_name_tells_the_kind(name: str, kind: str) -> None:
    assert kind_of(name, system="linux") == kind


def test_what_the_system_knows_goes_before_the_name() -> None:
    assert kind_of("net0", hints={"wireless"}) is InterfaceKind.WIFI
    bridge = kind_of("br0", system="linux", hints={"card"})
    assert bridge is InterfaceKind.ETHERNET, "the host's own address is on it"


def test_a_peer_is_reached_by_the_interface_on_its_network() -> None:
    found = read(LINUX, "linux")
    reach = {
        "127.0.0.1": InterfaceKind.LOOPBACK,
        "192.168.122.9": InterfaceKind.VIRTUAL,
        "192.168.1.200": InterfaceKind.ETHERNET,  # the better of two on one network
        "fd12::200": InterfaceKind.ETHERNET,
        "2001:db9::200": InterfaceKind.WIFI,
        "169.254.7.7": InterfaceKind.ETHERNET,
        "8.8.8.8": InterfaceKind.UNKNOWN,
        "10.0.0.9": InterfaceKind.UNKNOWN,  # that card is down
    }
    assert {a: kind_of_peer(a, found) for a in reach} == reach
    mac = read(MAC, "darwin")
    assert kind_of_peer("169.254.7.7", mac) is InterfaceKind.THUNDERBOLT


def test_a_peers_addresses_are_tried_best_first() -> None:
    mac = read(MAC, "darwin")
    order = best_first(["127.0.0.1", "8.8.8.8", "192.168.1.3", "169.254.1.2"], mac)
    assert order == ("169.254.1.2", "192.168.1.3", "8.8.8.8", "127.0.0.1")


def test_this_host_can_be_read() -> None:
    found = list_interfaces()
    loopback = [i for i in found if i.kind is InterfaceKind.LOOPBACK]
    assert loopback
    assert loopback[0].holds(ip_address("127.0.0.1"))
    assert loopback[0].mtu > 0


def test_speed_is_in_bytes() -> None:
    enp = next(i for i in read(LINUX, "linux") if i.name == "enp3s0")
    assert enp.speed_bytes_per_s == 125e6


def test_the_interface_towards_the_others_shares_a_network_with_all_of_them() -> None:
    cable = Interface(
        name="eth0",
        kind=InterfaceKind.ETHERNET,
        addresses=(IPv4Interface("192.168.1.5/24"),),
    )
    bridge = Interface(
        name="bridge0",
        kind=InterfaceKind.THUNDERBOLT,
        addresses=(IPv4Interface("10.0.0.5/24"), IPv6Interface("fd12::5/64")),
    )
    both, found = [cable, bridge], interface_towards
    assert found(both, [["192.168.1.6", "10.0.0.6"], ["192.168.1.7"]]) == "eth0"
    assert found(both, [["192.168.1.6", "10.0.0.6"], ["10.0.0.7"]]) == "bridge0"
    assert found(both, [["fd12::6"]]) == "bridge0"
    assert found(both, [["no address"]]) == "eth0", "the best one, if none fits"
    assert found(both, []) == "eth0"
    assert found([], [["10.0.0.6"]]) == ""
