"""16-bit gradients under DistributedDataParallel, in real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined] # is public
from torch.nn.parallel import DistributedDataParallel

from ringleader import compression
from ringleader.groups.group import Group
from ringleader.testing.processes import Nursery, Ready, spawn_ranks

pytestmark = pytest.mark.timeout(100)

BACKEND = "ringleader"
SIZE = 2
WITHIN_S = 40.0
"""A world takes two seconds, on a busy machine ten."""

ROUNDING = {"bf16": 2**-8, "fp16": 2**-11}
"""The relative error of one rounding."""

LARGE = 60_000.0
"""A gradient that float16 can hold once, but not its sum over two ranks."""


@dataclass(frozen=True)
class Outcome:
    """What one hook did on one rank."""

    dtypes: set[torch.dtype]
    """Of all that was all-reduced."""

    numbers: int
    """How many gradients were all-reduced."""

    error: float
    """The largest error of a gradient, relative to the largest gradient."""

    large: float
    """The average of LARGE."""

    gradients: bytes


@contextmanager
def recorded() -> Iterator[list[Tensor]]:
    """Notes what is all-reduced; for processes that soon end."""
    reduced: list[Tensor] = []
    all_reduce: Callable[..., Any] = dist.all_reduce

    def note(tensor: Tensor, *args: object, **kwargs: object) -> object:
        reduced.append(tensor)
        return all_reduce(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", note)
        yield reduced


@contextmanager
def process_group(group: Group, store: str) -> Iterator[None]:
    """torch.distributed among the ranks of ``group``."""
    dist.init_process_group(
        BACKEND,
        store=FileStore(store, group.size),
        rank=group.rank,
        world_size=group.size,
        timeout=timedelta(seconds=WITHIN_S),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4))


def batch() -> Tensor:
    """Rows for all ranks, the same number for each."""
    return torch.randn(6 * SIZE, 20, generator=torch.Generator().manual_seed(4))


def gradients(model: nn.Module) -> Tensor:
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(parts)


def exact_gradients() -> Tensor:
    """Of the whole batch, by one process in float64."""
    model = network().double()
    model(batch().double()).square().mean().backward()
    return gradients(model)


def average_large(hook: compression.Hook, state: dist.ProcessGroup | None) -> float:
    """What DDP makes of a gradient of LARGE on all ranks."""
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model.register_comm_hook(state, hook)
    model(torch.full((1, 1), LARGE)).sum().backward()
    return float(gradients(model))


def use_hooks(group: Group, _ready: Ready, store: str) -> dict[str, dict[str, Any]]:
    """Each hook on one backward; once with the default group, once with a given one."""
    want = exact_gradients()
    outcomes = {}
    with process_group(group, store):
        for name, state in (("bf16", None), ("fp16", dist.group.WORLD)):
            hook = compression.hook(name)
            model = DistributedDataParallel(network())
            model.register_comm_hook(state, hook)
            with recorded() as reduced:
                mine = batch().chunk(group.size)[group.rank]
                model(mine).square().mean().backward()
            got = gradients(model)
            outcome = Outcome(
                dtypes={tensor.dtype for tensor in reduced},
                numbers=sum(tensor.numel() for tensor in reduced),
                error=float((got - want).abs().max() / want.abs().max()),
                large=average_large(hook, state),
                gradients=got.numpy().tobytes(),
            )
            outcomes[name] = asdict(outcome)
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Outcome]]:
    """Of each rank."""
    store = str(tmp_path_factory.mktemp("hooks") / "store")
    with (
        Nursery() as nursery,
        spawn_ranks(SIZE, use_hooks, store, nursery=nursery) as ranks,
    ):
        results = [rank.result(WITHIN_S) for rank in ranks]
    return [{n: Outcome(**o) for n, o in result.items()} for result in results]


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_gradients_are_those_of_the_whole_batch(
    name: str, outcomes: list[dict[str, Outcome]]
) -> None:
    """Two roundings of each rank's part, one of the sum."""
    for outcome in (rank[name] for rank in outcomes):
        assert ROUNDING[name] / 100 < outcome.error < 3 * ROUNDING[name]


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_every_gradient_travels_once_in_16_bits(
    name: str, dtype: torch.dtype, outcomes: list[dict[str, Outcome]]
) -> None:
    for outcome in (rank[name] for rank in outcomes):
        assert outcome.dtypes == {dtype}
        assert outcome.numbers == sum(p.numel() for p in network().parameters())


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_all_ranks_hold_the_same_bits(
    name: str, outcomes: list[dict[str, Outcome]]
) -> None:
    assert len({rank[name].gradients for rank in outcomes}) == 1


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_sum_beyond_the_format_does_not_overflow(
    name: str, outcomes: list[dict[str, Outcome]]
) -> None:
    for rank in outcomes:
        assert rank[name].large == pytest.approx(LARGE, rel=ROUNDING[name])
