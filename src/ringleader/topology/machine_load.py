"""MachineLoad: how busy, full and warm a machine is now.

Systems tell different things: Linux and FreeBSD temperatures, laptops a battery. What
is unknown is None.
"""

from __future__ import annotations

import shutil
from typing import Annotated

import msgspec
from msgspec import Meta

from ringleader.topology.node_profile import MAX_ACCELERATORS, Bytes, tool_output

Percent = Annotated[float, Meta(ge=0, le=100)]
Celsius = Annotated[float, Meta(ge=-50, le=200)]

SHORT_S = 0.1
GPU_S = 2.0
"""``nvidia-smi`` answers in a tenth of a second once the driver is awake."""

_CHIP_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")
"""Linux's names of sensors in the processor, the best first."""


class MachineLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The load of one machine at one moment."""

    cpu_percent: Percent
    """Share of all cores that worked since the last measurement of this process."""
    memory_used_bytes: Bytes
    memory_total_bytes: Bytes
    temperature_c: Celsius | None = None
    """Temperature of the processor; None if this machine does not tell it."""
    battery_percent: Percent | None = None
    is_charging: bool = False
    gpu_percent: Percent | None = None
    """Mean of all GPUs of NVIDIA."""
    gpu_temperature_c: Celsius | None = None
    """Temperature of the warmest GPU."""


def measure_load(*, is_first: bool = False) -> MachineLoad:
    """Return the load of this machine in about 1 ms; with a GPU it takes longer.

    Call it from a thread, because of that. The load of the cores is since the last
    call; the first one has to wait a little.
    """
    import psutil  # slow to import, and only agents measure

    memory = psutil.virtual_memory()
    gpu_percent, gpu_temperature_c = parse_gpus(_query_gpus())
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return MachineLoad(
        cpu_percent=_percent(psutil.cpu_percent(SHORT_S if is_first else None)),
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
        temperature_c=_temperature_c(),
        battery_percent=None if battery is None else _percent(battery.percent),
        is_charging=battery is not None and bool(battery.power_plugged),
        gpu_percent=gpu_percent,
        gpu_temperature_c=gpu_temperature_c,
    )


def _query_gpus() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    query = "--query-gpu=utilization.gpu,temperature.gpu"
    return tool_output([tool, query, "--format=csv,noheader,nounits"], GPU_S)


def parse_gpus(text: str) -> tuple[float | None, float | None]:
    """Return the mean load and the highest temperature of lines with both.

    A GPU that does not tell one of them has ``[N/A]`` there.
    """
    loads, temperatures = [], []
    for line in text.splitlines()[:MAX_ACCELERATORS]:
        load, _, temperature = line.partition(",")
        if load.strip().isdecimal():
            loads.append(_percent(float(load)))
        if temperature.strip().isdecimal() and float(temperature) <= 200:
            temperatures.append(float(temperature))
    percent = round(sum(loads) / len(loads)) if loads else None
    return percent, max(temperatures, default=None)


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
