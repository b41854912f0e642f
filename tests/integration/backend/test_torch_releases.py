"""Ranks with different releases of torch are refused, or told, when a group forms."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ringleader.backend.rank_facts import RankFacts, check_torch
from ringleader.errors import ConfigError
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks

WITHIN_S = 300.0


def form(
    group: Group, _ready: Ready, path: str, releases: list[str]
) -> tuple[str, list[str]]:
    """Form a process group as if torch were another; the error and what was logged."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ringleader").addHandler(handler)
    torch.__version__ = releases[group.rank]  # type: ignore[assignment]
    try:
        dist.init_process_group(
            "ringleader",
            store=FileStore(path, group.size),
            rank=group.rank,
            world_size=group.size,
        )
        dist.new_group()
        dist.destroy_process_group()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}", logged
    return "", logged


@pytest.mark.parametrize(
    ("releases", "is_refused"),
    [(["2.13.0+cpu", "2.15.0"], True), (["2.14.0", "2.14.1+cu130"], False)],
    ids=["minor", "patch"],
)
def test_another_release_is_refused_or_reported_on_every_rank(
    fork_server: ForkServer,
    tmp_path: object,
    releases: list[str],
    is_refused: bool,
) -> None:
    path = f"{tmp_path}/store"
    with spawn_ranks(2, form, path, releases, fork_server=fork_server) as ranks:
        results = [rank.result(WITHIN_S) for rank in ranks]
    for error, logged in results:
        text = error if is_refused else "".join(logged)
        assert f"torch is {releases[0]} on rank 0 (" in text, (error, logged)
        assert f"and {releases[1]} on rank 1 (" in text
        if is_refused:
            assert error.startswith("ConfigError")
            assert "pip install 'torch==2.13.*'" in text
        else:
            assert not error
            assert len(logged) == 1, "once, though two groups were formed"


def test_rows_of_other_ranks_are_read_with_care() -> None:
    long = RankFacts(True, "2.13.0" * 20, "höst" * 40)
    assert len(long.encode()) == 128
    assert RankFacts.decode(long.encode()).has_accelerator
    plain = RankFacts(False, "2.13.0+cpu", "desk")
    assert RankFacts.decode(plain.encode()) == plain
    assert RankFacts.decode(bytes(128)).torch == ""
    strange = RankFacts.decode(b"1 2.13\x1b[31m \xff\x00" + bytes(100))
    assert "\x1b" not in strange.torch + strange.host


def test_builds_of_one_release_are_alike() -> None:
    versions = ("2.13.0+cpu", "2.13.0+cu130", "2.13.0")
    check_torch([RankFacts(False, version, "desk") for version in versions])


def test_a_refusal_names_the_machine_that_must_change() -> None:
    versions = {"desk": "2.15.0", "attic": "2.15.1", "barn": "2.13.0"}
    ranks = [RankFacts(False, version, host) for host, version in versions.items()]
    with pytest.raises(ConfigError) as error:
        check_torch(ranks)
    for words in ("2.15.0 on rank 0 (desk)", "2.13.0 on rank 2 (barn)", ".*'` on barn"):
        assert words in str(error.value)
