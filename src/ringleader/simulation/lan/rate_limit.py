"""Limits the rate at which an interface sends, in total and to single peers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from ringleader.errors import ConfigError, RingleaderError
from ringleader.simulation.lan.ip_command import tc, tc_batch

MAX_BURST_BYTES = 128 * 1024
"""Largest burst. It must hold the bytes that fall due between two timer ticks, and
should hold the largest packet that the kernel hands over in one piece (64 KiB,
otherwise the kernel splits it first). With a larger burst, small tensors would travel
faster than the simulated link."""

MIN_BURST_BYTES = 10 * 1024
"""Smallest burst: a jumbo frame must fit, or it would never be sent."""

BURST_S = 5e-3
"""Between the two limits, a burst is what the link sends in this time."""

QUEUE_S = 0.05
"""Queue length in seconds (6 MB at 1 Gbit/s); packets beyond it are dropped. If
shorter, the streams that meet at the center of a star lose packets and time out; if
longer, congestion would never be noticed."""

UNLIMITED = 40e9 / 8
"""Total rate of an interface that is only slow to single peers."""

QUANTUM = 60_000
"""Bytes that one htb class sends before the next one's turn: one large packet."""

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(i?)(bit|bps)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def bytes_per_s(rate: str) -> float:
    """Parse a rate in tc's units: ``100mbit``, ``2.5gbit``, ``10mbps`` (bytes)."""
    match = _RATE.fullmatch(rate.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"lan: invalid rate {rate!r}; write it as 100mbit or 1gbit")
    number, power, binary, unit = match.groups()
    factor = float((1024 if binary else 1000) ** _POWERS[power])
    return float(number) * factor / (8 if unit == "bit" else 1)


def limit_rate(
    namespace: str, device: str, rate: str | None, slow: Mapping[str, str]
) -> None:
    """Limit ``device`` to ``rate`` in total, and to each MAC in ``slow`` to its rate.

    Replaces earlier limits; queued packets are lost, as in a real change.
    """
    if slow:
        _share(namespace, device, rate, slow)
    elif rate is not None:
        speed = bytes_per_s(rate)
        tc(
            namespace,
            *("qdisc", "replace", "dev", device, "root", "tbf"),
            *("rate", _bits(speed), "burst", str(_burst(speed))),
            *("limit", str(_queue(speed))),
        )
    else:
        _clear(namespace, device)


def _clear(namespace: str, device: str) -> None:
    with suppress(RingleaderError):  # there was none
        tc(namespace, "qdisc", "delete", "dev", device, "root")


def _share(
    namespace: str, device: str, rate: str | None, slow: Mapping[str, str]
) -> None:
    """Add one htb class per slow peer and one for all others, under a common parent."""
    whole = bytes_per_s(rate) if rate is not None else UNLIMITED
    speeds = {mac: min(bytes_per_s(each), whole) for mac, each in slow.items()}
    usual = max(whole - sum(speeds.values()), whole / 10)
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 2",
        _htb(device, "1:", "1:1", (whole, whole)),
        *_leaf(device, "1:2", (usual, whole)),
    ]
    for number, (mac, speed) in enumerate(speeds.items(), start=3):
        name = f"1:{number:x}"
        lines += _leaf(device, name, (speed, speed))
        lines.append(
            f"filter add dev {device} parent 1: protocol all pref {number}"
            f" u32 match ether dst {mac} flowid {name}"
        )
    _clear(namespace, device)
    tc_batch(namespace, lines)


def _leaf(device: str, name: str, speeds: tuple[float, float]) -> list[str]:
    bytes_waiting = _queue(speeds[1])
    return [
        _htb(device, "1:1", name, speeds),
        f"qdisc add dev {device} parent {name} bfifo limit {bytes_waiting}",
    ]


def _htb(device: str, parent: str, name: str, speeds: tuple[float, float]) -> str:
    """Return the command for a class with guaranteed and maximum rate ``speeds``."""
    sure, most = speeds
    return (
        f"class add dev {device} parent {parent} classid {name} htb"
        f" rate {_bits(sure)} burst {_burst(sure)}"
        f" ceil {_bits(most)} cburst {_burst(most)} quantum {QUANTUM}"
    )


def _bits(speed: float) -> str:
    return f"{round(speed * 8)}bit"


def _burst(speed: float) -> int:
    return int(min(max(speed * BURST_S, MIN_BURST_BYTES), MAX_BURST_BYTES))


def _queue(speed: float) -> int:
    return int(speed * QUEUE_S) + _burst(speed)
