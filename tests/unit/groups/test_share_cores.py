"""The cores of a rank as it tells them to the others, and quotas of control groups."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from ringleader.collectives.helper_threads import RankCores
from ringleader.groups.share_cores import cpu_quota, decode, encode


@pytest.mark.parametrize("asked", [None, 0, 3])
def test_a_row_says_everything(asked: int | None) -> None:
    rank = RankCores(
        cores=frozenset({0, 7, 1023}),
        quota=2.5,
        num_local=4,
        torch_threads=2,
        asked=asked,
        can_help=False,
    )
    assert decode(encode(rank)) == rank


def test_no_quota_is_infinite() -> None:
    rank = RankCores(cores=frozenset({0}))
    assert decode(encode(rank)).quota == inf


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/", {}, inf),
        (
            "4:cpu,cpuacct:/box",
            {
                "cpu/box/cpu.cfs_quota_us": "400000\n",
                "cpu/box/cpu.cfs_period_us": "100000\n",
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
    ],
)
def test_quotas_of_all_control_groups_above_count(
    line: str, files: dict[str, str], cores: float, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n1:pids:/elsewhere\n")
    for name, text in files.items():
        path = tmp_path / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpu_quota(tmp_path / "proc", tmp_path / "cgroups") == cores


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path) == inf
