"""The memory of a machine, read from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.parallel.measurement.machine_memory import free_memory
from ringleader.settings.parallel import is_dry_run, memory_limit

GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_smallest_limit_above_the_process_counts(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", f"MemTotal: {16 << 20} kB\nMemAvailable: {8 << 20} kB\n")
    assert free_memory(proc, cgroups) == 8 * GIB

    write(proc / "self/cgroup", "0::/box/job\n")
    group = cgroups / "box"
    write(group / "memory.max", f"{5 * GIB}\n")
    write(group / "memory.current", f"{3 * GIB}\n")
    write(group / "memory.stat", f"anon 1\ninactive_file {GIB}\n")
    write(group / "job" / "memory.max", "max\n")
    write(group / "job" / "memory.current", "1\n")
    write(group / "job" / "memory.stat", "anon 1\n")
    assert free_memory(proc, cgroups) == 3 * GIB, "the file cache is given back"


def test_a_limit_of_the_first_version_of_control_groups_counts(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", f"MemAvailable: {8 << 20} kB\n")
    write(proc / "self/cgroup", "4:memory:/job\n1:cpu:/\n0::/\n")
    group = cgroups / "memory/job"
    write(group / "memory.limit_in_bytes", f"{2 * GIB}\n")
    write(group / "memory.usage_in_bytes", f"{GIB}\n")
    write(group / "memory.stat", "total_inactive_file 512\n")
    assert free_memory(proc, cgroups) == GIB + 512


def test_this_machine_has_memory() -> None:
    assert free_memory() > 1 << 20


@pytest.mark.parametrize(
    ("text", "limit"),
    [("", None), ("8GiB", 8 * GIB), ("1.5 gb", 1_500_000_000), ("512", 512)],
)
def test_the_user_may_set_the_memory(text: str, limit: int | None) -> None:
    assert memory_limit({"RINGLEADER_MEMORY": text}) == limit


@pytest.mark.parametrize("text", ["much", "8 GiBs", "-1", "1e9", "9" * 40])
def test_a_wrong_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write 8GiB"):
        memory_limit({"RINGLEADER_MEMORY": text})


def test_a_dry_run_is_a_switch() -> None:
    assert is_dry_run({"RINGLEADER_DRY_RUN": "1"})
    assert not is_dry_run({})
