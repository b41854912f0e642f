"""Battery: decides whether this machine should get no work, to spare its battery."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

LOW_PERCENT = 20.0
_POWER_SUPPLIES = Path("/sys/class/power_supply")
_PMSET_S = 5.0
_PERCENT = re.compile(r"(\d{1,3})%;\s*([a-z ]+);")


@dataclass(frozen=True, slots=True)
class Battery:
    """State of the battery of this machine."""

    percent: float
    is_discharging: bool

    @property
    def is_low(self) -> bool:
        """True if the machine should have no work: below 20 %, and not on mains."""
        return self.is_discharging and self.percent < LOW_PERCENT


def read_battery(folder: Path = _POWER_SUPPLIES) -> Battery | None:
    """Return the state of the battery, the emptiest of several; None: there is none.

    Takes up to five seconds on macOS, so it is not called by a thread that answers.
    """
    if folder.is_dir():
        found = [_read_linux(each) for each in sorted(folder.iterdir())]
    elif (pmset := shutil.which("pmset")) is not None:
        found = [_read_macos(pmset)]
    else:
        found = []
    batteries = [each for each in found if each is not None]
    return min(batteries, key=lambda each: each.percent, default=None)


def should_spare() -> bool:
    """Return whether this machine should have no work, to spare its battery."""
    battery = read_battery()
    return battery is not None and battery.is_low


def _read_linux(folder: Path) -> Battery | None:
    with contextlib.suppress(OSError, ValueError):
        if (folder / "type").read_text().strip() != "Battery":
            return None
        scope = folder / "scope"  # mice and headsets have batteries, too
        if scope.exists() and scope.read_text().strip() == "Device":
            return None
        percent = float((folder / "capacity").read_text())
        status = (folder / "status").read_text().strip()
        return Battery(percent, status == "Discharging")
    return None


def _read_macos(pmset: str) -> Battery | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [pmset, "-g", "batt"],
            capture_output=True,
            text=True,
            timeout=_PMSET_S,
            check=True,
        )
        return parse_pmset(done.stdout)
    return None


def parse_pmset(text: str) -> Battery | None:
    """Return the battery in the output of ``pmset -g batt``; None if it has none."""
    found = _PERCENT.search(text)
    if found is None:
        return None
    return Battery(float(found[1]), found[2].strip() == "discharging")
