"""Collectives whose chunks travel coded: right, bit-identical, nothing lost unseen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ringleader.codec.codec import BLOCK, Data, Values
from ringleader.codec.int8 import Int8
from ringleader.codec.registry import make_codec
from ringleader.collectives.algorithm import program
from ringleader.collectives.algorithm_selection import CODED_ALGORITHMS, choose_codec
from ringleader.collectives.cost_model import LinkCost, Network
from ringleader.engine.over_links import coded_engine as coded
from ringleader.engine.over_links import coded_frames
from ringleader.engine.over_links.coded_frames import CodedPlan
from ringleader.errors import CallMismatch, ConfigError, RingleaderError
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_threads, run_world, world

ALL = ("fp16", "bf16", "int8", "int8-stochastic:3", "onebit")
LENGTHS = (0, 1, 2, 5, 2047, 2049, 40_001)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
CLOSE = {"fp16": 1e-3, "bf16": 8e-3, "int8": 0.03, "int8-stochastic:3": 0.05}
"""How far off the sum may be, as a share of its size; twice what one rounding does."""


@pytest.fixture
def short_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many frames per chunk, without many megabytes."""
    monkeypatch.setattr(coded_frames, "FRAME", BLOCK)


def given(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    chance = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=chance, dtype=torch.float64).to(dtype)


def size_of(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def same_bits(tensors: list[Tensor]) -> bool:
    first = tensors[0].view(torch.uint8)
    return all(torch.equal(t.view(torch.uint8), first) for t in tensors[1:])


@pytest.mark.usefixtures("short_frames")
@pytest.mark.parametrize("algorithm", CODED_ALGORITHMS["all_reduce"])
@pytest.mark.parametrize("size", [2, 3, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_all_reduce_is_close_identical_and_tells_what_it_lost(
    size: int, algorithm: str
) -> None:
    """The sum is one of values, not of bytes, and the error is known."""

    def body(group: Group) -> list[tuple[Tensor, Tensor]]:
        results = []
        for codec in ALL:
            for count in LENGTHS:
                tensor, lost = given(group.rank, count), torch.full((count,), 77.0)
                group.all_reduce(
                    tensor, codec=codec, algorithm=algorithm, error_out=lost
                )
                results.append((tensor, lost))
        return results

    ranks = run_world(size, body, "memory")
    calls = [(codec, count) for codec in ALL for count in LENGTHS]
    for i, (codec, count) in enumerate(calls):
        sums, losts = zip(*(results[i] for results in ranks), strict=True)
        assert same_bits(list(sums)), (codec, count)
        exact = torch.stack([given(r, count).double() for r in range(size)]).sum(0)
        missing = exact - sums[0].double()
        told = torch.stack(losts).double().sum(0)
        assert size_of(told - missing) <= 1e-6 * size * (1 + size_of(exact))
        if codec in CLOSE and count > 100:
            assert 0 < size_of(missing) < CLOSE[codec] * size_of(exact)


@pytest.mark.usefixtures("short_frames")
@pytest.mark.parametrize("algorithm", CODED_ALGORITHMS["all_reduce"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_what_is_owed_is_added_and_nothing_is_lost_for_good(
    size: int, algorithm: str
) -> None:
    """Over many steps everything arrives: only the last step's loss is missing."""
    count, steps = 6001, 4

    def body(group: Group) -> tuple[Tensor, Tensor]:
        applied = torch.zeros(count, dtype=torch.float64)
        owed, lost = torch.zeros(count), torch.empty(count)
        for step in range(steps):
            tensor = given(100 * step + group.rank, count)
            group.all_reduce(
                tensor,
                codec="onebit",
                algorithm=algorithm,
                residual=owed,
                error_out=lost,
            )
            applied += tensor
            owed, lost = lost, owed
        return applied, owed

    ranks = run_world(size, body, "memory")
    exact = sum(
        given(100 * s + r, count).double() for s in range(steps) for r in range(size)
    )
    told = torch.stack([owed for _, owed in ranks]).double().sum(0)
    assert isinstance(exact, Tensor)
    assert size_of(exact - ranks[0][0] - told) < 1e-5 * size_of(exact)
    assert size == 1 or size_of(told) > 0.1 * size_of(exact), "a bit loses a lot"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_every_dtype_and_the_mean_over_real_links(
    dtype: torch.dtype, transport: str
) -> None:
    count, size = 300_001, 3

    def body(group: Group) -> list[Tensor]:
        results = []
        for codec in ("bf16", "int8", "onebit"):
            out = torch.empty(count, dtype=dtype)
            source = given(group.rank, count, dtype)
            kept = source.clone()
            group.all_reduce(source, "mean", out=out, codec=codec)
            assert torch.equal(source, kept), "it wrote its input"
            group.all_reduce(source, "mean", codec=codec)
            assert torch.equal(source, out), "in place it is the same"
            results.append(out)
        return results

    ranks = run_world(size, body, transport)
    exact = torch.stack([given(r, count, dtype).double() for r in range(size)]).mean(0)
    for i, limit in enumerate((0.01, 0.04, 1.0)):
        assert same_bits([results[i] for results in ranks])
        assert size_of(ranks[0][i].double() - exact) < limit * size_of(exact)


def through(name: str, tensor: Tensor) -> Tensor:
    """What comes out at the other end; frames are whole blocks, so in one go."""
    once, result = make_codec(name), torch.empty_like(tensor)
    data = np.empty(once.num_bytes(len(tensor)), np.uint8)
    once.encode(tensor.numpy(), data)
    once.decode(data, result.numpy())
    return result


@pytest.mark.usefixtures("short_frames")
@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("name", ALL)
def test_reduce_scatter_and_all_gather(size: int, name: str) -> None:
    count = 8201

    def body(group: Group) -> list[Tensor]:
        results = []
        mine = given(group.rank, count * size)
        for algorithm in CODED_ALGORITHMS["reduce_scatter"]:
            out, lost = torch.empty(count), torch.full_like(mine, 77)
            group.reduce_scatter(
                out, mine, codec=name, error_out=lost, algorithm=algorithm
            )
            results += [out, lost]
        for algorithm in CODED_ALGORITHMS["all_gather"]:
            everything = torch.empty(count * size)
            group.all_gather(everything, mine[:count], codec=name, algorithm=algorithm)
            results.append(everything)
        return results

    ranks = run_world(size, body, "memory")
    exact = torch.stack([given(r, count * size).double() for r in range(size)]).sum(0)
    for i in range(0, 2 * len(CODED_ALGORITHMS["reduce_scatter"]), 2):
        got = torch.cat([results[i] for results in ranks]).double()
        told = torch.stack([results[i + 1] for results in ranks]).double().sum(0)
        assert size_of(exact - got - told) < 1e-5 * size_of(exact)
    pieces = [given(rank, count * size)[:count] for rank in range(size)]
    want = torch.cat([through(name, piece) for piece in pieces])
    for i in range(2 * len(CODED_ALGORITHMS["reduce_scatter"]), len(ranks[0])):
        assert same_bits([results[i] for results in ranks])
        if name != "int8-stochastic:3":
            assert torch.equal(ranks[0][i], want)


@pytest.mark.parametrize("size", range(2, 18))
def test_every_rank_encodes_every_element_once(size: int) -> None:
    """What makes ``lost`` the whole truth, for every algorithm and size."""
    for name in CODED_ALGORITHMS["all_reduce"]:
        for rank in range(size):
            parts = CodedPlan(program("all_reduce", name, rank, size))
            for chunk, history in parts.versions.items():
                encoded = sum(v.is_encoded for v in history)
                assert encoded == 1, f"{name}: rank {rank} of {size}, chunk {chunk}"


def test_large_chunks_find_room_whatever_the_others_do() -> None:
    """What is passed on once waited for slots, all around a ring, for ever."""
    count = 6_000_000

    def body(group: Group) -> Tensor:
        tensor = given(group.rank, count)
        group.all_reduce(tensor, codec="fp16", algorithm="ring", timeout_s=200)
        return tensor

    ranks = run_world(3, body, "memory")
    exact = torch.stack([given(r, count).double() for r in range(3)]).sum(0)
    assert same_bits(ranks)
    assert size_of(ranks[0].double() - exact) < 1e-3 * size_of(exact)


@pytest.mark.parametrize("codec", ["int8", "onebit", "bf16"])
def test_nan_reaches_everybody_and_is_not_carried_over(codec: str) -> None:
    def body(group: Group) -> tuple[Tensor, Tensor]:
        tensor, lost = given(group.rank, 9000), torch.empty(9000)
        if group.rank == 1:
            tensor[5000] = torch.nan
        group.all_reduce(tensor, codec=codec, error_out=lost)
        return tensor, lost

    ranks = run_world(3, body, "memory")
    assert same_bits([tensor for tensor, _ in ranks])
    bad = ranks[0][0].isnan()
    assert bad[5000]
    assert bad.sum() <= (1 if codec == "bf16" else BLOCK)
    assert all(lost.isfinite().all() for _, lost in ranks)


def test_different_codecs_are_told_apart() -> None:
    with world(2, "memory") as groups:

        def call(group: Group) -> str:
            codec = ("int8", "bf16")[group.rank]
            with pytest.raises(CallMismatch) as caught:
                group.all_reduce(torch.ones(5), codec=codec)
            return str(caught.value)

        told = run_threads([lambda g=g: call(g) for g in groups])  # type: ignore[misc]
        assert all("as int8" in text and "as bf16" in text for text in told)


class Liar(Int8):
    """Writes scales that are not numbers."""

    def encode(
        self, values: Values, data: Data, error_out: Values | None = None
    ) -> None:
        super().encode(values, data, error_out)
        data[:4] = 255


@pytest.mark.parametrize("algorithm", CODED_ALGORITHMS["all_reduce"])
def test_what_a_liar_sends_is_refused_by_name(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale that is not a number breaks the group; it is not added up."""
    monkeypatch.setattr(
        coded, "make_codec", lambda _, rank=0: Liar() if rank == 1 else Int8()
    )
    with world(3, "memory") as groups:

        def call(group: Group) -> str:
            with pytest.raises(RingleaderError) as caught:
                group.all_reduce(torch.ones(5), codec="int8", algorithm=algorithm)
            return str(caught.value)

        told = run_threads([lambda g=g: call(g) for g in groups])  # type: ignore[misc]
        assert any("sent int8: a scale is negative or not a number" in t for t in told)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"codec": "zip"}, "unknown codec 'zip'"),
        ({"codec": "int8", "op": "max"}, "goes with sum and mean, not max"),
        ({"codec": "int8", "algorithm": "doubling"}, "supports no codec"),
        (
            {"codec": "int8", "error_out": torch.zeros(4)},
            "error_out is 4 x torch.float32",
        ),
        (
            {"codec": "int8", "residual": torch.zeros(4)},
            "residual is 4 x torch.float32",
        ),
        (
            {"codec": "int8", "error_out": torch.zeros(5).double()},
            "not 5 x torch.float32",
        ),
        ({"error_out": torch.zeros(5)}, "residual and error_out need a codec"),
        ({"codec": "int8", "tensor": torch.ones(5).int()}, "this tensor is"),
    ],
)
def test_a_wrong_call_is_explained_and_breaks_nothing(
    change: dict[str, object], told: str
) -> None:
    with world(1, "memory") as (group,):
        keywords = {"tensor": torch.ones(5), **change}
        with pytest.raises(ConfigError, match=told):
            group.all_reduce(**keywords)  # type: ignore[arg-type]
        tensor, lost = torch.ones(5), torch.ones(5)
        group.all_reduce(tensor, codec="int8", error_out=lost)
        assert torch.equal(tensor, torch.ones(5))
        assert not lost.any()


# -- auto --------------------------------------------------------------------------


def network(bandwidth: float, size: int = 4, **changes: object) -> Network:
    link = LinkCost(latency_s=1e-4, bandwidth=bandwidth)
    row = tuple(link for _ in range(size))
    hosts = changes.pop("hosts", tuple(range(size)))
    return Network(links=(row,) * size, hosts=hosts, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mbit", "codec"),
    [(10, "int8"), (100, "int8"), (1000, "int8"), (10_000, None), (40_000, None)],
)
def test_auto_codes_where_the_wire_is_the_limit(mbit: int, codec: str | None) -> None:
    assert choose_codec("all_reduce", 64 << 20, network(mbit * 125e3)) == codec


def test_auto_leaves_tiny_tensors_and_shared_memory_alone() -> None:
    assert choose_codec("all_reduce", 400, network(125e6)) is None
    assert choose_codec("all_reduce", 64 << 10, network(125e6)) is None
    assert choose_codec("all_reduce", 64 << 10, network(12.5e6)) == "int8"
    near = network(2e9, hosts=(0,) * 4, shares_memory=True)
    assert choose_codec("all_reduce", 64 << 20, near) is None
    assert choose_codec("all_reduce", 64 << 20, network(2e9, hosts=(0,) * 4)) is None


def test_auto_is_exact_where_it_does_not_code() -> None:
    def body(group: Group) -> tuple[Tensor, Tensor]:
        tensor, lost = given(group.rank, 5000), torch.full((5000,), 77.0)
        group.all_reduce(
            tensor, codec="auto", residual=torch.ones(5000), error_out=lost
        )
        return tensor, lost

    for tensor, lost in run_world(2, body, "shm"):
        want = given(0, 5000).double() + given(1, 5000).double() + 2
        assert torch.allclose(tensor.double(), want, atol=1e-5)
        assert not lost.any()
