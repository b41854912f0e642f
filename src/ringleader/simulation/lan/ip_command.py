"""Runs iproute2's commands, names namespaces, and checks what this machine supports."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ringleader.errors import ConfigError, RingleaderError

_ETC = Path("/etc/netns")
_NAMES = re.compile(r"ringleader-(\d+)-[0-9a-f]+-(?:switch|host\d+)")


@cache
def can_make_lan() -> tuple[bool, str]:
    """Return whether this process can make a LAN, and the reason.

    Trying it out takes several processes, so it is done once.
    """
    if sys.platform != "linux":
        return False, f"network namespaces need Linux, this is {sys.platform}"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return False, f"{missing[0]} is not installed (package iproute2)"
    if os.geteuid() != 0:
        return False, "network namespaces need root"
    tbf = ("tbf", "rate", "1gbit", "burst", "100kb", "latency", "50ms")
    return _try_out(lambda at: tc(at, "qdisc", "add", "dev", "lo", "root", *tbf))


@cache
def can_make_faults() -> tuple[bool, str]:
    """Return whether it can also make slow and faulty cables, and the reason.

    They need htb, u32 and mirred of tc, which minimal kernels leave out.
    """

    def probe(at: str) -> None:
        tc(at, "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")
        tc(at, "qdisc", "add", "dev", "lo", "clsact")
        tc(
            at,
            *("filter", "add", "dev", "lo", "egress", "u32", "match", "u32", "0", "0"),
            *("action", "mirred", "egress", "redirect", "dev", "lo"),
        )

    is_possible, reason = can_make_lan()
    return _try_out(probe) if is_possible else (False, reason)


def _try_out(probe: Callable[[str], object]) -> tuple[bool, str]:
    name = new_prefix() + "-switch"
    try:
        run("ip", "netns", "add", name)
        probe(name)
    except RingleaderError as error:
        return False, str(error)
    finally:
        remove([name])
    return True, "Linux, root and iproute2 are available"


def new_prefix() -> str:
    """Return a prefix for the namespaces of one LAN."""
    return f"ringleader-{os.getpid()}-{secrets.token_hex(3)}"


def stale() -> list[str]:
    """List the namespaces left behind by processes that have ended."""
    words = run("ip", "netns", "list").split()
    found = [(word, _NAMES.fullmatch(word)) for word in words]
    return [word for word, match in found if match and not _is_alive(int(match[1]))]


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def set_name_server(namespace: str, address: str, options: str = "") -> None:
    """Write the file that ``ip netns exec`` mounts over /etc/resolv.conf."""
    folder = _ETC / namespace
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resolv.conf").write_text(f"nameserver {address}\noptions {options}\n")


def set_hosts(namespace: str, lines: Sequence[str]) -> None:
    """Write the hosts file that ``ip netns exec`` mounts over /etc/hosts."""
    (_ETC / namespace / "hosts").write_text("".join(f"{line}\n" for line in lines))


def remove(namespaces: Sequence[str]) -> None:
    """Delete the namespaces that exist, and with them their veth pairs and bridges."""
    for name in namespaces:
        shutil.rmtree(_ETC / name, ignore_errors=True)
        if os.path.exists(f"/run/netns/{name}"):
            with suppress(RingleaderError):  # another process may have deleted it
                run("ip", "netns", "delete", name)


def ip(namespace: str, *words: str) -> str:
    """Run ``ip`` in a namespace."""
    return run("ip", "-n", namespace, *words)


def tc(namespace: str, *words: str) -> str:
    """Run ``tc`` in a namespace."""
    return run("tc", "-n", namespace, *words)


def tc_batch(namespace: str, lines: Sequence[str]) -> None:
    """Run many ``tc`` commands in a namespace at once."""
    run("tc", "-n", namespace, "-batch", "-", text="".join(f"{e}\n" for e in lines))


def run(*argv: str, text: str | None = None) -> str:
    """Run a command of iproute2; raises RingleaderError with its error output.

    It runs in a session of its own, so that a second Ctrl-C does not stop the cleanup.
    """
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            input=text or "",
            check=False,
            timeout=30,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"lan: {' '.join(argv)}: {error}") from error
    if done.returncode:
        raise ConfigError(f"lan: {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout
