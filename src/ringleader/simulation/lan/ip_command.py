"""iproute2's commands, the names of our namespaces, and what this machine can do."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ringleader.errors import RingleaderError

_ETC = Path("/etc/netns")
_NAMES = re.compile(r"ringleader-(\d+)-[0-9a-f]+-(?:switch|host\d+)")


def can_make_lan() -> tuple[bool, str]:
    """Whether this process can make a LAN, and if not, why not."""
    if sys.platform != "linux":
        return False, f"network namespaces need Linux, this is {sys.platform}"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return False, f"{missing[0]} is not installed (package iproute2)"
    if os.geteuid() != 0:
        return False, "network namespaces need root"
    tbf = ("tbf", "rate", "1gbit", "burst", "100kb", "latency", "50ms")
    return _try_out(lambda at: tc(at, "qdisc", "add", "dev", "lo", "root", *tbf))


def can_make_faults() -> tuple[bool, str]:
    """Whether its cables can also be made slow and lossy, and if not, why not.

    Small kernels leave parts of tc out; htb, u32 and mirred are needed.
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
    return True, "Linux, root and iproute2 are here"


def new_prefix() -> str:
    """What the names of the namespaces of one LAN begin with."""
    return f"ringleader-{os.getpid()}-{secrets.token_hex(3)}"


def stale() -> list[str]:
    """Namespaces of processes that are gone."""
    words = run("ip", "netns", "list").split()
    found = [(word, _NAMES.fullmatch(word)) for word in words]
    return [word for word, match in found if match and not _is_alive(int(match[1]))]


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def no_name_server(namespace: str) -> None:
    """Let names fail at once: the machine's own server cannot be reached from here.

    ``ip netns exec`` puts this file in the place of /etc/resolv.conf.
    """
    folder = _ETC / namespace
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")


def remove(namespaces: Sequence[str]) -> None:
    """Delete what is there; the veth pairs and the bridges go with their namespaces."""
    for name in namespaces:
        shutil.rmtree(_ETC / name, ignore_errors=True)
        if os.path.exists(f"/run/netns/{name}"):
            with suppress(RingleaderError):  # another process may have been quicker
                run("ip", "netns", "delete", name)


def ip(namespace: str, *words: str) -> str:
    """Run ``ip`` in a namespace."""
    return run("ip", "-n", namespace, *words)


def tc(namespace: str, *words: str) -> str:
    """Run ``tc`` in a namespace."""
    return run("tc", "-n", namespace, *words)


def tc_batch(namespace: str, lines: Sequence[str]) -> None:
    """Run many commands of ``tc`` in a namespace at once."""
    run("tc", "-n", namespace, "-batch", "-", text="".join(f"{e}\n" for e in lines))


def run(*argv: str, text: str | None = None) -> str:
    """Run a command of iproute2, which is quick; its own words are the error.

    In a session of its own, so that a second Ctrl-C does not kill the cleaning up.
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
        raise RingleaderError(f"lan: {' '.join(argv)}: {error}") from error
    if done.returncode:
        raise RingleaderError(f"lan: {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout
