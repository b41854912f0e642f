"""Compressed gradients under DistributedDataParallel and FSDP2, in real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch._dynamo  # in the fork server, not in every rank, in 2 s
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined] # is public
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ringleader import compression
from ringleader.compression.communicator import TorchCommunicator
from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks

SIZE = 2
STEPS = 3
WITHIN_S = 400.0
"""A world takes three seconds, and fifteen on a busy machine."""

ANYWHERE = ["bf16", "fp16", "topk:0.1", "randomk:0.1", "powersgd:1", "none"]
"""Schemes that other backends support, too."""
OURS = [*ANYWHERE, "int8", "int8-stochastic", "onebit", "auto"]

HALF_DTYPES = {"bf16": (torch.bfloat16, 2**-8), "fp16": (torch.float16, 2**-11)}
"""scheme -> (dtype on the wire, relative error of one rounding)."""

LARGE = 60_000.0
"""A gradient that fits in float16, while its sum over two ranks does not."""

Values = NDArray[np.float64]


# -- in the ranks ----------------------------------------------------------------------


@contextmanager
def process_group(group: Group, backend: str, store: str) -> Iterator[None]:
    """torch.distributed among the ranks of ``group``."""
    dist.init_process_group(
        backend,
        store=FileStore(store, group.size),
        rank=group.rank,
        world_size=group.size,
        timeout=timedelta(seconds=WITHIN_S / 2),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def network(*, is_turned: bool = False) -> nn.Sequential:
    """Return a few layers; ``is_turned`` stores the second weight transposed."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 25), nn.Tanh(), nn.Linear(25, 4)
    )
    if is_turned:
        weight = cast(nn.Linear, model[2]).weight
        weight.data = weight.data.t().contiguous().t()
    return model


def wrap(hook: compression.Hook, **how: Any) -> DistributedDataParallel:  # noqa: ANN401
    """Wrap with several buckets, which DDP rebuilds after the first step."""
    whole = network(is_turned=True)
    model = DistributedDataParallel(whole, bucket_cap_mb=0.002, **how)
    model.register_comm_hook(None, hook)
    return model


def backward(model: nn.Module, rank: int, step: int) -> None:
    """Return the gradients of a batch of this rank and step."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    model(torch.randn(6, 20, generator=generator)).square().mean().backward()


def gradients(model: nn.Module) -> list[Values]:
    return [p.grad.double().numpy() for p in model.parameters() if p.grad is not None]


def residuals(hook: compression.Hook, model: nn.Module) -> list[Values]:
    """Return the residuals in parameter order."""
    state = hook.compressor.state_dict()
    found = []
    for parameter in model.parameters():
        kept = state.get(f"residual.{hook._parameter_names[parameter]}")
        values = torch.zeros_like(parameter, dtype=torch.float64)
        if kept is not None:
            by_memory = sorted(
                range(values.dim()), key=lambda d: -parameter.stride()[d]
            )
            values.permute(by_memory).copy_(
                kept.view([parameter.shape[d] for d in by_memory])
            )
        found.append(values.numpy())
    return found


def observe(name: str, rank: int) -> list[dict[str, list[Values]]]:
    """Return the inputs and outputs of each step."""
    hook = compression.hook(name)
    model = wrap(hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            backward(model, rank, step)
        seen = {"inputs": gradients(model)}
        optimizer.zero_grad()
        if step:
            seen["owed"] = residuals(hook, model)
        backward(model, rank, step)
        seen["outputs"] = gradients(model)
        seen["owing"] = residuals(hook, model)
        steps.append(seen)
        optimizer.step()
    return steps


def average_large(name: str) -> float:
    """Return what DDP computes for a gradient of LARGE on all ranks."""
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model.register_comm_hook(dist.group.WORLD, compression.hook(name))
    model(torch.full((1, 1), LARGE)).sum().backward()
    return float(gradients(model)[0][0, 0])


def resume(name: str, rank: int) -> bool:
    """Return whether a run that is resumed in another process ends with the same bits.

    Without DDP's new buckets, which a fresh one makes after its own first step.
    """

    def go_on(hook: compression.Hook, state: dict[str, Tensor], first: int) -> Tensor:
        model = wrap(hook, find_unused_parameters=True)
        model.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(first, first + 2):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
        state.update({k: v.clone() for k, v in model.state_dict().items()})
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    hook, other = (compression.hook(name, seed=seed) for seed in (1, 2))
    weights = {f"module.{k}": v for k, v in network().state_dict().items()}
    go_on(hook, weights, 0)
    saved = dict(weights)
    other.compressor.load_state_dict(hook.compressor.state_dict())
    fresh = compression.hook(name, seed=3)
    fresh.compressor.load_state_dict(hook.compressor.state_dict())
    return torch.equal(go_on(other, dict(saved), 2), go_on(fresh, dict(saved), 2))


@contextmanager
def recorded() -> Iterator[list[Tensor]]:
    """Record the arguments of torch's all_reduce, without restoring it."""
    reduced: list[Tensor] = []
    all_reduce: Callable[..., Any] = dist.all_reduce

    def note(tensor: Tensor, *args: object, **kwargs: object) -> object:
        reduced.append(tensor)
        return all_reduce(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", note)
        yield reduced


def use_hooks(group: Group, _ready: Ready, backend: str, store: str) -> dict[str, Any]:
    """Run all scenarios of this backend in one world."""
    with process_group(group, backend, store):
        names = OURS if backend == "ringleader" else ANYWHERE
        found: dict[str, Any] = {
            "steps": {name: observe(name, group.rank) for name in names},
            "large": {name: average_large(name) for name in HALF_DTYPES},
        }
        if backend == "gloo":
            found["types"] = {}
            for name in HALF_DTYPES:
                with recorded() as reduced:
                    observe(name, group.rank)
                found["types"][name] = [(t.dtype, t.numel()) for t in reduced]
            found["swapped"] = swap(group.rank)
            with pytest.raises(RuntimeError) as caught:
                observe("int8", group.rank)
            found["refusal"] = str(caught.value)
        else:
            found["resumed"] = {name: resume(name, group.rank) for name in names}
            found["sharded"] = {n: shard(n, group.rank) for n in ("bf16", "int8")}
        return found


def swap(rank: int) -> list[list[int]]:
    """Exchange parts whose lengths differ by pair of ranks."""
    assert dist.group.WORLD is not None
    comm = TorchCommunicator(dist.group.WORLD, torch.device("cpu"))
    parts = [np.full(rank + to + 1, rank, np.uint8) for to in range(SIZE)]
    lengths = [source + rank + 1 for source in range(SIZE)]
    return [part.tolist() for part in comm.all_to_all_bytes(parts, lengths)]


def shard(name: str, rank: int) -> tuple[list[Values], list[Values]]:
    """Return (gradients of a sharded model, gradients of this rank alone)."""
    alone = network()
    backward(alone, rank, 0)
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    compression.fsdp(model, name)
    backward(model, rank, 0)
    whole = [cast(DTensor, p.grad).full_tensor() for p in model.parameters()]
    return [grad.double().numpy() for grad in whole], gradients(alone)


def die_in_the_middle(
    group: Group, _ready: Ready, name: str, store: str
) -> tuple[bool, str]:
    """Rank 1 dies in its second step, when one bucket of two has been averaged."""
    with process_group(group, "ringleader", store):
        hook = compression.hook(name)
        model = wrap(hook)
        backward(model, group.rank, 0)
        before = hook.compressor.state_dict()
        if group.rank == 1:
            begun = iter(range(1))
            reduce = hook.compressor.reduce

            def reduce_or_die(*args: Any, **named: Any) -> None:  # noqa: ANN401
                if next(begun, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                reduce(*args, **named)

            hook.compressor.reduce = reduce_or_die  # type: ignore[method-assign]
        with pytest.raises(RuntimeError) as caught:
            backward(model, group.rank, 1)
        after = hook.compressor.state_dict()
        is_same = before.keys() == after.keys() and all(
            torch.equal(before[key], after[key]) for key in before
        )
        return is_same, str(caught.value)


# -- what they found -------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """The results of every backend and rank."""
    results = {}
    for backend in ("ringleader", "gloo"):
        store = str(tmp_path_factory.mktemp("hooks") / backend)
        with spawn_ranks(
            SIZE, use_hooks, backend, store, fork_server=fork_server
        ) as ranks:
            results[backend] = [rank.result(WITHIN_S) for rank in ranks]
    return results


CASES = [("ringleader", name) for name in OURS] + [("gloo", name) for name in ANYWHERE]


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_all_ranks_get_the_same_bits(
    backend: str, name: str, found: dict[str, list[Any]]
) -> None:
    first, second = (rank["steps"][name] for rank in found[backend])
    for mine, theirs in zip(first, second, strict=True):
        pairs = zip(mine["outputs"], theirs["outputs"], strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_what_is_not_applied_is_owed(
    backend: str, name: str, found: dict[str, list[Any]]
) -> None:
    """It holds per parameter in every step, also when DDP rebuilds its buckets."""
    # A sum in 16 bits by another backend loses what nobody owes.
    limit = (
        3 * HALF_DTYPES[name][1] if backend == "gloo" and name in HALF_DTYPES else 1e-5
    )
    ranks = [rank["steps"][name] for rank in found[backend]]
    for steps in zip(*ranks, strict=True):
        for i, output in enumerate(steps[0]["outputs"]):
            total = sum(step["inputs"][i] for step in steps)
            total += sum(step["owed"][i] if "owed" in step else 0 for step in steps)
            owing = sum(step["owing"][i] for step in steps)
            scale = max(np.abs(step["inputs"][i]).max() for step in steps)
            assert np.abs(total - SIZE * output - owing).max() <= limit * scale


@pytest.mark.parametrize("name", [n for n in OURS if n not in ("none", "auto")])
def test_something_is_owed_indeed(name: str, found: dict[str, list[Any]]) -> None:
    last = found["ringleader"][0]["steps"][name][-1]
    assert any(np.abs(owing).max() > 0 for owing in last["owing"])


@pytest.mark.parametrize(("backend", "name"), [c for c in CASES if c[1] in HALF_DTYPES])
def test_a_sum_beyond_the_format_does_not_overflow(
    backend: str, name: str, found: dict[str, list[Any]]
) -> None:
    for rank in found[backend]:
        assert rank["large"][name] == pytest.approx(LARGE, rel=HALF_DTYPES[name][1])


@pytest.mark.parametrize("name", HALF_DTYPES)
def test_elsewhere_every_gradient_travels_once_in_16_bits(
    name: str, found: dict[str, list[Any]]
) -> None:
    count = sum(p.numel() for p in network().parameters())
    for rank in found["gloo"]:
        kinds = rank["types"][name]
        assert {dtype for dtype, _ in kinds} == {HALF_DTYPES[name][0]}
        assert sum(numel for _, numel in kinds) == STEPS * count


def test_elsewhere_a_codec_is_refused_with_what_to_do(
    found: dict[str, list[Any]],
) -> None:
    for rank in found["gloo"]:
        assert "'int8' needs the ringleader backend" in rank["refusal"]
        assert "init_process_group('ringleader')" in rank["refusal"]


def test_elsewhere_entries_go_to_their_owners(found: dict[str, list[Any]]) -> None:
    swapped = [rank["swapped"] for rank in found["gloo"]]
    assert swapped == [[[0], [1, 1]], [[0, 0], [1, 1, 1]]]


@pytest.mark.parametrize("name", OURS)
def test_a_resumed_run_ends_with_the_same_bits(
    name: str, found: dict[str, list[Any]]
) -> None:
    assert all(rank["resumed"][name] for rank in found["ringleader"])


@pytest.mark.parametrize(("name", "limit"), [("bf16", 1e-2), ("int8", 5e-2)])
def test_a_sharded_model_has_the_gradients_of_all(
    name: str, limit: float, found: dict[str, list[Any]]
) -> None:
    ranks = [rank["sharded"][name] for rank in found["ringleader"]]
    for i, got in enumerate(ranks[0][0]):
        wanted = sum(alone[i] for _, alone in ranks) / SIZE
        error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        assert 1e-4 < error < limit
        assert all(np.array_equal(got, whole[i]) for whole, _ in ranks)


@pytest.mark.parametrize("name", ["int8", "topk:0.1", "powersgd:1"])
def test_a_killed_rank_leaves_no_trace_of_the_step(
    name: str, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = str(tmp_path_factory.mktemp("killed") / "store")
    with spawn_ranks(
        SIZE, die_in_the_middle, name, store, fork_server=fork_server
    ) as ranks:
        is_same, text = ranks[0].result(WITHIN_S)
    assert is_same
    assert "rank 1" in text
