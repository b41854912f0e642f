"""A node's profile is read from the machine, and bounded when it comes from others."""

from __future__ import annotations

import platform
import subprocess
import sys

import msgspec
import psutil
import pytest

from ringleader.deadline import Deadline
from ringleader.errors import ProtocolError
from ringleader.topology import node_profile
from ringleader.topology.node_profile import Accelerator, NodeProfile

H200 = Accelerator("NVIDIA H200", "cuda", 141 << 30)


def some_profile(**changes: object) -> NodeProfile:
    plain = NodeProfile(
        host="attic",
        system="Linux",
        system_version="Debian 12",
        architecture="x86_64",
        chip="Intel N100",
        physical_cores=4,
        logical_cores=4,
        total_ram_bytes=16 << 30,
        available_ram_bytes=12 << 30,
    )
    return msgspec.structs.replace(plain, **changes)


def test_this_machine_is_really_measured() -> None:
    mine = node_profile.measure()
    assert mine.host == platform.node()
    assert mine.logical_cores == psutil.cpu_count()
    assert 0 < mine.physical_cores <= mine.logical_cores
    assert mine.total_ram_bytes == psutil.virtual_memory().total
    assert 0 < mine.available_ram_bytes <= mine.total_ram_bytes
    assert mine.chip
    assert mine.chip == node_profile.clean(mine.chip)
    assert mine.python_version == platform.python_version()
    assert mine.torch_version
    assert mine.ringleader_version
    assert node_profile.decode(node_profile.encode(mine), "peer") == mine


def test_measuring_is_quick_and_leaves_torch_alone() -> None:
    code = (
        "import sys, time; from ringleader.topology import node_profile;"
        "start = time.process_time(); node_profile.measure();"
        "assert time.process_time() - start < 1.5, 'slow';"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("text", "chip"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD Ryzen  7\n\nmodel name\t: x",
            "AMD Ryzen 7",
        ),
        (
            "processor\t: 0\nBogoMIPS\t: 48\n\nModel\t\t: Raspberry Pi 5",
            "Raspberry Pi 5",
        ),
        ("Hardware\t: Qualcomm X Elite\n", "Qualcomm X Elite"),
        ("model name\t:\n", ""),
        ("", ""),
    ],
)
def test_the_name_of_the_chip_is_found(text: str, chip: str) -> None:
    assert node_profile.parse_cpuinfo(text) == chip


def test_gpus_are_read_with_their_memory() -> None:
    text = "NVIDIA H200, 143771\nNVIDIA GB10, [N/A]\nGeForce, the second, 8192\n\nbad\n"
    assert node_profile.parse_nvidia(text) == (
        Accelerator("NVIDIA H200", "cuda", 143771 << 20),
        Accelerator("NVIDIA GB10", "cuda", 0),
        Accelerator("GeForce, the second", "cuda", 8192 << 20),
    )
    assert (
        len(node_profile.parse_nvidia("GPU, 1\n" * 99)) == node_profile.MAX_ACCELERATORS
    )


def test_asking_for_gpus_ends_in_time_whatever_there_is() -> None:
    found = node_profile.find_accelerators(Deadline.after(5))
    assert all(each.device == "cuda" for each in found)


def test_what_a_worker_sees_completes_the_profile() -> None:
    plain = some_profile()
    assert plain.device == "cpu"
    full = plain.with_accelerators([H200, H200])
    assert full.device == "cuda"
    assert full.accelerators == (H200, H200)
    assert full.chip == plain.chip
    assert plain.accelerators == ()


def test_names_are_made_fit_to_be_shown() -> None:
    assert node_profile.clean(" a\n\tb\x1b[31m\u202e c ") == "a b [31m c"
    assert len(node_profile.clean("x" * 1000)) == node_profile.MAX_TEXT


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "x" * 97},
        {"chip": "red\x1b[31m"},
        {"chip": "two\nlines"},
        {"chip": "turned \u202e around"},
        {"logical_cores": -1},
        {"logical_cores": 1 << 20},
        {"total_ram_bytes": 1 << 61},
        {"total_ram_bytes": 1.5},
        {"accelerators": (H200,) * 17},
        {"accelerators": (Accelerator("x", "tpu"),)},  # type: ignore[arg-type]
    ],
)
def test_a_profile_beyond_the_limits_is_refused(changes: dict[str, object]) -> None:
    data = node_profile.encode(some_profile(**changes))
    with pytest.raises(ProtocolError, match="mallory: profile"):
        node_profile.decode(data, "mallory")


def test_bytes_that_are_no_profile_are_refused() -> None:
    known = msgspec.msgpack.decode(node_profile.encode(some_profile()))
    strange = [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        msgspec.msgpack.encode({**known, "extra": 1}),
        msgspec.msgpack.encode({k: v for k, v in known.items() if k != "chip"}),
        b"\x81\xa1\xff\x01",
        bytes(node_profile.MAX_PROFILE_BYTES + 1),
    ]
    for data in strange:
        with pytest.raises(ProtocolError):
            node_profile.decode(data, "mallory")


def test_the_longest_profile_fits_the_limit() -> None:
    long = "\u00e9" * node_profile.MAX_TEXT
    texts = ["host", "system", "system_version", "architecture", "chip"]
    texts += ["torch_version", "python_version", "ringleader_version"]
    gpus = (Accelerator(long, "cuda", 1 << 60),) * node_profile.MAX_ACCELERATORS
    data = node_profile.encode(
        some_profile(accelerators=gpus, **dict.fromkeys(texts, long))
    )
    assert len(data) < node_profile.MAX_PROFILE_BYTES
    assert node_profile.decode(data, "peer").host == long
