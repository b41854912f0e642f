"""The load of this machine, and what a driver tells of its GPUs."""

from __future__ import annotations

import msgspec

from ringleader.topology.machine_load import MachineLoad, measure_load, parse_gpus


def test_this_machine_has_a_load_that_can_travel() -> None:
    load = measure_load(is_first=True)
    assert 0 < load.memory_used_bytes < load.memory_total_bytes
    encoded = msgspec.msgpack.encode(load)
    assert msgspec.msgpack.decode(encoded, type=MachineLoad) == load


def test_the_gpus_are_one_number() -> None:
    assert parse_gpus("30, 61\n90, 75\n") == (60, 75.0)
    assert parse_gpus("[N/A], 40\n") == (None, 40.0)
    assert parse_gpus("7, [N/A]\n") == (7, None)
    assert parse_gpus("") == (None, None)
    assert parse_gpus("NVIDIA-SMI has failed\n") == (None, None)
    assert parse_gpus("250, 999\n") == (100, None)
