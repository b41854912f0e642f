"""Compressed averages over real links: values, residuals, bits, checkpoints.

The same checks are made of schemes that the systems before us had, and catch them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import pytest
import torch
from torch import Tensor

from ringleader.compression import compressor
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_world

SCHEMES = [
    "bf16",
    "fp16",
    "int8",
    "int8-stochastic",
    "onebit",
    "auto",
    "topk:0.05",
    "topk-exact:0.05",
    "topk:0.9",
    "randomk:0.05",
    "powersgd:2",
]
"""Every lossy scheme, and topk with a ratio at which dense is cheaper."""

SHAPES = {"matrix": (90, 70), "bias": (13,), "scalar": (), "conv": (16, 3, 5, 5)}
LONG = {**SHAPES, "vector": (100_003,)}

Tensors = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


class Averager(Protocol):
    """The interface under test: our compressor, and defective ones."""

    def average(self, group: Group, tensors: Tensors) -> None:
        """Average over all ranks approximately, in place."""
        ...

    def state_dict(self) -> Tensors:
        """Return the state, with "residual.NAME" for each tensor."""
        ...


Make = Callable[[], Averager]


def gradients(shapes: Shapes, rank: int, step: int) -> Tensors:
    """Values of different magnitudes per rank and tensor."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {
        name: torch.randn(shape, generator=generator) * (rank + 1) * 10.0 ** (i - 2)
        for i, (name, shape) in enumerate(shapes.items())
    }


def exact_mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.double() for tensor in tensors]).mean(0)


class Step(NamedTuple):
    """One step of one rank."""

    inputs: Tensors
    before: Tensors
    outputs: Tensors
    after: Tensors

    def residual(self, name: str, *, after: bool) -> Tensor:
        """Return the residual of this rank, in float64."""
        found = (self.after if after else self.before).get(f"residual.{name}")
        wanted = self.inputs[name].double()
        return (
            torch.zeros_like(wanted)
            if found is None
            else found.double().view_as(wanted)
        )


def train(
    make: Make, size: int, *, steps: int = 3, shapes: Shapes = SHAPES
) -> list[list[Step]]:
    """Run the steps on each rank."""

    def live(group: Group) -> list[Step]:
        averager, seen = make(), []
        for step in range(steps):
            inputs = gradients(shapes, group.rank, step)
            outputs = {name: tensor.clone() for name, tensor in inputs.items()}
            before = averager.state_dict()
            averager.average(group, outputs)
            seen.append(Step(inputs, before, outputs, averager.state_dict()))
        return seen

    return run_world(size, live)


def of(name: str, **how: float) -> Make:
    return lambda: compressor(name, **how)  # type: ignore[arg-type]


# -- checks, for ours and for others ------------------------------------------------


def check_nothing_is_lost(make: Make, size: int = 3, shapes: Shapes = SHAPES) -> None:
    """Every value is applied or in some rank's residual, in every step."""
    for ranks in zip(*train(make, size, shapes=shapes), strict=True):
        # Of all tensors: they may share a scale.
        largest = max(float(t.abs().max()) for r in ranks for t in r.inputs.values())
        for name in shapes:
            put_in = sum(r.inputs[name].double() for r in ranks)
            owed = sum(r.residual(name, after=False) for r in ranks)
            applied = size * ranks[0].outputs[name].double()
            owing = sum(r.residual(name, after=True) for r in ranks)
            error = (put_in + owed) - (applied + owing)
            assert error.abs().max() <= 1e-6 * size * largest, name


def check_a_constant_arrives(make: Make, steps: int = 120) -> None:
    """A gradient of 1.0 moves every weight by 1.0 per step, on average."""

    def live(group: Group) -> Tensor:
        averager, moved = make(), torch.zeros(200)
        for _ in range(steps):
            tensors = {"weight": torch.ones(20, 10)}
            averager.average(group, tensors)
            moved += tensors["weight"].view(-1)
        return moved / steps

    moved = run_world(2, live)[0]
    assert moved.max() < 1.05  # nothing comes twice
    assert 0.8 < moved.mean() < 1.001  # what is late comes


def check_values_do_not_shrink(make: Make) -> None:
    """The result is as large as the input, within a thousandth."""
    shapes: Shapes = {"weight": (30_000,)}
    ranks = train(make, 2, steps=1, shapes=shapes)
    wanted = exact_mean([r[0].inputs["weight"] for r in ranks])
    got = ranks[0][0].outputs["weight"].double()
    assert float(got @ wanted / (wanted @ wanted)) == pytest.approx(1, abs=1e-3)


# -- ours ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", SCHEMES)
def test_nothing_is_lost(name: str, size: int) -> None:
    check_nothing_is_lost(of(name), size, LONG)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_constant_gradient_arrives_as_it_is(name: str) -> None:
    check_a_constant_arrives(of(name))


@pytest.mark.parametrize("name", ["bf16", "fp16", "int8", "int8-stochastic", "none"])
def test_values_do_not_shrink(name: str) -> None:
    check_values_do_not_shrink(of(name))


ERRORS = {"none": 1e-6, "fp16": 1e-3, "bf16": 8e-3, "int8": 3e-2, "topk:0.9": 1e-6}
"""Error of one step, relative to the norm of the gradient: three times the expected."""


@pytest.mark.parametrize(("name", "limit"), ERRORS.items())
def test_one_step_is_close_to_the_mean(name: str, limit: float) -> None:
    ranks = train(of(name), 4, steps=1, shapes={"matrix": (90, 70)})
    wanted = exact_mean([r[0].inputs["matrix"] for r in ranks])
    error = ranks[0][0].outputs["matrix"].double() - wanted
    assert error.norm() <= limit * wanted.norm()


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("name", SCHEMES)
def test_all_ranks_hold_the_same_bits(name: str, size: int) -> None:
    shapes = {**SHAPES, "odd": (1, 1031)}
    first, *others = train(of(name), size, steps=2, shapes=shapes)
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            for key in shapes:
                a, b = mine.outputs[key], theirs.outputs[key]
                assert a.view(torch.int32).equal(b.view(torch.int32)), key


@pytest.mark.parametrize("name", ["topk:0.05", "randomk:0.05", "powersgd:2"])
def test_a_rank_owes_only_what_is_its_own(name: str) -> None:
    """The residual is of what this rank put in, not of how ranks differ: else it would
    grow without end.
    """

    def live(group: Group) -> Tensors:
        ours = compressor(name)
        for step in range(2):
            tensors = gradients(SHAPES, group.rank, step)
            if group.rank == 1:
                tensors = {key: torch.zeros_like(t) for key, t in tensors.items()}
            ours.average(group, tensors)
        return ours.state_dict()

    other, idle, _ = run_world(3, live)
    for key in SHAPES:
        assert not idle[f"residual.{key}"].any()
    assert other["residual.matrix"].any()


def test_powersgd_comes_as_close_as_its_rank_allows() -> None:
    """The basis of one step starts the next, so the approximation improves."""
    generator = torch.Generator().manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(80, 50, generator=generator))
    sizes = 0.8 ** torch.arange(50)
    matrix = left[:, :50] * sizes @ right
    best = sizes[2:].double().square().sum().sqrt()

    def live(group: Group) -> list[float]:
        ours, errors = compressor("powersgd:2", feedback=False), []
        for _ in range(15):
            tensors = {"matrix": matrix.clone()}
            ours.average(group, tensors)
            errors.append(float((tensors["matrix"].double() - matrix).norm() / best))
        return errors

    errors = run_world(2, live)[0]
    assert errors[0] > 1.05
    assert 0.9999 < errors[-1] < 1.01


def test_only_the_share_travels_and_the_rest_stays() -> None:
    """One in twenty values of the vector is not zero."""
    rank = train(of("topk-exact:0.05", feedback=False), 1 + 1, steps=1)[0][0]
    chosen = rank.outputs["matrix"].count_nonzero()
    assert 315 <= chosen <= 2 * 315
    assert not any("residual" in key for key in rank.after)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
@pytest.mark.parametrize("name", ["int8", "topk:0.1", "randomk:0.1", "powersgd:2"])
def test_every_floating_type_is_averaged(name: str, dtype: torch.dtype) -> None:
    """Values are float32 inside; the result is rounded to the dtype once."""

    def live(group: Group) -> tuple[Tensor, Tensor]:
        ours, wide = compressor(name), compressor(name)
        source = gradients(SHAPES, group.rank, 0)["matrix"].to(dtype)
        tensor, same = source.clone(), source.float()
        ours.average(group, {"matrix": tensor})
        wide.average(group, {"matrix": same})
        return tensor, same.to(dtype)

    for got, wanted in run_world(2, live):
        assert got.dtype is dtype
        assert torch.equal(got, wanted)


def test_strided_tensors_and_any_order_of_names() -> None:
    """ZF-4: dictionaries may have another order on every rank."""

    def live(group: Group) -> Tensors:
        plain = gradients(SHAPES, group.rank, 0)
        names = sorted(plain, reverse=bool(group.rank % 2))
        tensors = {name: plain[name].clone() for name in names}
        tensors["matrix"] = plain["matrix"].t().contiguous().t()
        assert not tensors["matrix"].is_contiguous()
        compressor("fp16").average(group, tensors)
        return tensors

    results = run_world(3, live)
    for name in SHAPES:
        wanted = exact_mean([gradients(SHAPES, r, 0)[name] for r in range(3)])
        for result in results:
            error = result[name].double() - wanted
            assert error.norm() <= 2e-3 * wanted.norm()


def test_alone_nothing_is_lost() -> None:
    def live(group: Group) -> Tensor:
        tensor = gradients(SHAPES, 0, 0)["matrix"]
        compressor("topk:0.01").average(group, {"matrix": tensor})
        return tensor

    (got,) = run_world(1, live)
    assert torch.equal(got, gradients(SHAPES, 0, 0)["matrix"])


# -- others' -------------------------------------------------------------------------


class Seed:
    """A defective scheme: a lossy encoding, then an exact mean."""

    def __init__(self, keep: bool = True) -> None:
        self._residual: Tensors = {}
        self._keep = keep

    def lose(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return (the values to send, the residual)."""
        raise NotImplementedError

    def average(self, group: Group, tensors: Tensors) -> None:
        for name, tensor in sorted(tensors.items()):
            total = tensor + self._residual.get(name, torch.zeros(()))
            sent, kept = self.lose(total)
            if self._keep:
                self._residual[name] = kept
            tensor.copy_(sent)
            group.all_reduce(tensor, "mean")

    def state_dict(self) -> Tensors:
        return {f"residual.{name}": t for name, t in self._residual.items()}


class TruncatingInt8(Seed):
    """It rounds towards zero and keeps no residual."""

    def lose(self, total: Tensor) -> tuple[Tensor, Tensor]:
        scale = total.abs().max() / 127
        return (total / scale).trunc() * scale, torch.zeros_like(total)


class ScaledRandom(Seed):
    """It divides by the share and keeps the rest as well."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(42)

    def lose(self, total: Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.rand(total.shape, generator=self._generator) < 0.1
        return (total / 0.1) * chosen, total * ~chosen


class ForgetfulOneBit(Seed):
    """It drops the residual, and zero decodes to minus the scale."""

    def lose(self, total: Tensor) -> tuple[Tensor, Tensor]:
        scale = total.abs().mean()
        return torch.where(total > 0, scale, -scale), torch.zeros_like(total)


class ForgetfulTopK(Seed):
    """Values that are never the largest are never sent."""

    def lose(self, total: Tensor) -> tuple[Tensor, Tensor]:
        flat, sent = total.view(-1), torch.zeros(total.numel())
        chosen = flat.abs().topk(max(1, flat.numel() // 10)).indices
        sent[chosen] = flat[chosen]
        return sent.view_as(total), torch.zeros_like(total)


@pytest.mark.parametrize(
    "make", [TruncatingInt8, ScaledRandom, ForgetfulOneBit, ForgetfulTopK]
)
def test_the_others_lose_something(make: Make) -> None:
    with pytest.raises(AssertionError):
        check_nothing_is_lost(make)


@pytest.mark.parametrize("make", [ScaledRandom, ForgetfulTopK])
def test_the_others_change_a_constant(make: Make) -> None:
    with pytest.raises(AssertionError):
        check_a_constant_arrives(make)


def test_truncation_shrinks() -> None:
    with pytest.raises(AssertionError):
        check_values_do_not_shrink(TruncatingInt8)
