"""The rule that a firewall needs is a command that can be pasted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import pytest

from ringleader.doctor.firewall_command import (
    Firewall,
    FirewallKind,
    allow,
    allow_over_there,
)
from ringleader.doctor.local_firewall import input_chain, is_ufw_on

PORTS = [range(29471, 29472), range(29600, 29604)]
LAN = "192.168.1.0/24"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            FirewallKind.UFW,
            "sudo ufw allow proto tcp from 192.168.1.0/24 to any port "
            "29471,29600:29603",
        ),
        (
            FirewallKind.FIREWALLD,
            "sudo firewall-cmd --permanent --add-port=29471/tcp "
            "--add-port=29600-29603/tcp && sudo firewall-cmd --reload",
        ),
        (
            FirewallKind.NFTABLES,
            "sudo nft insert rule inet filter input ip saddr 192.168.1.0/24 "
            "tcp dport '{ 29471, 29600-29603 }' accept",
        ),
        (
            FirewallKind.IPTABLES,
            "sudo iptables -I INPUT -p tcp -s 192.168.1.0/24 "
            "-m multiport --dports 29471,29600:29603 -j ACCEPT",
        ),
        (
            FirewallKind.WINDOWS,
            "New-NetFirewallRule -DisplayName Ringleader -Direction Inbound -Action "
            "Allow -Protocol TCP -LocalPort 29471,29600-29603 -RemoteAddress "
            "192.168.1.0/24 (PowerShell, as administrator)",
        ),
    ],
)
def test_each_firewall_gets_its_own_command(kind: FirewallKind, expected: str) -> None:
    assert allow(Firewall(kind), PORTS, LAN) == expected
    shlex.split(expected.partition(" (")[0])


@pytest.mark.parametrize("kind", FirewallKind)
def test_no_network_allows_any_address(kind: FirewallKind) -> None:
    text = allow(Firewall(kind), PORTS, "")
    assert "saddr" not in text
    assert "-s " not in text
    assert "RemoteAddress" not in text


def test_a_network_of_ipv6_has_its_own_words() -> None:
    six = "fd00::/64"
    nft = allow(Firewall(FirewallKind.NFTABLES, "inet mine in"), PORTS, six)
    assert "rule inet mine in ip6 saddr fd00::/64" in nft
    assert allow(Firewall(FirewallKind.IPTABLES), PORTS, six).startswith("sudo ip6t")


def test_a_machine_gets_the_commands_of_its_system() -> None:
    windows = allow_over_there("Windows", PORTS, LAN)
    assert "New-NetFirewallRule" in windows
    assert "ufw" not in windows
    linux = allow_over_there("Linux", PORTS, LAN)
    assert all(word in linux for word in ("ufw allow", "firewall-cmd", "nft insert"))
    assert "New-NetFirewallRule" not in linux
    unknown = allow_over_there("", PORTS, LAN)
    assert all(word in unknown for word in ("ufw", "New-NetFirewallRule", "Python"))


def test_ufw_tells_in_its_configuration_whether_it_is_on() -> None:
    assert is_ufw_on("# comment\nENABLED=yes\nLOGLEVEL=low\n")
    assert not is_ufw_on("ENABLED=no\n")
    assert not is_ufw_on("")


def ruleset(policy: str, *rules: Mapping[str, object]) -> str:
    names = {"family": "inet", "table": "mine"}
    chain = {**names, "name": "in", "hook": "input", "policy": policy}
    beside = {**names, "name": "out", "hook": "output", "policy": "drop"}
    entries = [{"chain": beside}, {"chain": chain}]
    return json.dumps({"nftables": [*entries, *({"rule": rule} for rule in rules)]})


def test_the_chain_of_nftables_that_refuses_packets_is_found() -> None:
    drops = {"family": "inet", "table": "mine", "chain": "in", "expr": [{"drop": None}]}
    assert input_chain(ruleset("drop")) == "inet mine in"
    assert input_chain(ruleset("accept", drops)) == "inet mine in"
    assert input_chain(ruleset("accept")) == ""
    assert input_chain(ruleset("accept", {**drops, "chain": "other"})) == ""


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"nftables": 1}', "{}"])
def test_no_answer_of_nft_is_no_chain(text: str) -> None:
    assert input_chain(text) == ""
