"""MachineLoad: how busy, full and warm a machine is now.

Systems tell different things: Linux and FreeBSD temperatures, laptops a battery. What
is unknown is None.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ringleader.topology.node_profile import Bytes

Percent = Annotated[float, Meta(ge=0, le=100)]
Celsius = Annotated[float, Meta(ge=-50, le=200)]

SHORT_S = 0.1

_CHIP_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")
"""Linux's names of sensors in the processor, the best first."""


class MachineLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The load of one machine at one moment."""

    cpu_percent: Percent
    """Share of all cores that worked since the last measurement of this process."""
    memory_used_bytes: Bytes
    memory_total_bytes: Bytes
    temperature_c: Celsius | None = None
    """Of the processor."""
    battery_percent: Percent | None = None
    is_charging: bool = False


def measure_load(*, is_first: bool = False) -> MachineLoad:
    """Return the load of this machine in about 1 ms.

    The load of the cores is since the last call; the first one has to wait a little.
    """
    import psutil  # slow to import, and only agents measure

    memory = psutil.virtual_memory()
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return MachineLoad(
        cpu_percent=_percent(psutil.cpu_percent(SHORT_S if is_first else None)),
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
        temperature_c=_temperature_c(),
        battery_percent=None if battery is None else _percent(battery.percent),
        is_charging=battery is not None and bool(battery.power_plugged),
    )


def _temperature_c() -> float | None:
    import psutil

    if not hasattr(psutil, "sensors_temperatures"):
        return None
    try:
        sensors = psutil.sensors_temperatures()
    except OSError:
        return None
    for name in _CHIP_SENSORS:
        found = [each.current for each in sensors.get(name, [])]
        if found and -50 <= max(found) <= 200:
            return round(float(max(found)))
    return None


def _percent(value: float) -> float:
    return min(100.0, max(0.0, round(float(value))))
