"""Finds out which firewall this machine has. It changes nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from ringleader.doctor.firewall_command import Firewall, FirewallKind

ASK_S = 2.0
MAX_ANSWER_BYTES = 16 << 20
_UFW = Path("/etc/ufw/ufw.conf")
_FIREWALLD = Path("/run/firewalld.pid")


def local_firewall() -> Firewall | None:
    """Return the active firewall of this machine; None if none is found.

    Only the superuser may list the rules of nftables and iptables.
    """
    if sys.platform == "win32":
        return Firewall(FirewallKind.WINDOWS)
    if sys.platform == "darwin":
        return Firewall(FirewallKind.MACOS)
    if is_ufw_on(_read(_UFW)):
        return Firewall(FirewallKind.UFW)
    if _FIREWALLD.exists():
        return Firewall(FirewallKind.FIREWALLD)
    chain = input_chain(_ask("nft", "-j", "list", "ruleset"))
    if chain:
        return Firewall(FirewallKind.NFTABLES, chain)
    rules = _ask("iptables", "-S", "INPUT")
    if any(f" {verdict}" in rules for verdict in ("DROP", "REJECT")):
        return Firewall(FirewallKind.IPTABLES)
    return None


def is_ufw_on(config: str) -> bool:
    """Return whether ufw's configuration turns it on."""
    lines = [line.strip().lower() for line in config.splitlines()]
    return "enabled=yes" in lines


def input_chain(ruleset: str) -> str:
    """Return the chain that decides about incoming packets, from nft's JSON.

    Of several, the first that drops or rejects something; empty if none does.
    """
    try:
        entries = [dict(each) for each in dict(json.loads(ruleset))["nftables"]]
    except (ValueError, TypeError, KeyError):
        return ""
    chains = [e["chain"] for e in entries if "chain" in e]
    rules = [e["rule"] for e in entries if "rule" in e]
    for chain in chains:
        if chain.get("hook") != "input":
            continue
        its_rules = [
            r
            for r in rules
            if (r.get("family"), r.get("table"), r.get("chain"))
            == (chain.get("family"), chain.get("table"), chain.get("name"))
        ]
        verdicts = [v for r in its_rules for v in r.get("expr", [])]
        refuses = any("drop" in v or "reject" in v for v in verdicts)
        if chain.get("policy") == "drop" or refuses:
            return f"{chain['family']} {chain['table']} {chain['name']}"
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _ask(program: str, *args: str) -> str:
    found = shutil.which(program)
    if found is None:
        return ""
    try:
        answer = subprocess.run(
            [found, *args], capture_output=True, timeout=ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout[:MAX_ANSWER_BYTES].decode(errors="replace")
