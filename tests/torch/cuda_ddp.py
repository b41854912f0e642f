"""DistributedDataParallel on a GPU that all ranks share; check_cuda.py runs it.

Every gradient is compared with one process that sees the batches of all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.checkpoint import checkpoint

from ringleader.backend.device_exchange import DeviceExchange
from ringleader.groups import postponement

WIDTH, LAYERS, STEPS = 500, 4, 4
"""A layer has 2 MB of gradients, in a bucket of its own."""
LATE_AFTER = 3000
"""Rows and columns of products that keep the GPU busy for a millisecond."""


class Net(nn.Module):
    """Layers whose backward passes do something else on the way."""

    def __init__(self, on_the_way: Callable[[int], object], width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(width, width, dtype=torch.float64) for _ in range(LAYERS)
        )
        self.on_the_way = on_the_way
        self.is_reentrant = False

    def forward(self, values: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if self.is_reentrant:
                values = checkpoint(layer, values, use_reentrant=True).tanh()
            else:
                values = layer(values).tanh()
            values.register_hook(partial(self._pass, number))  # type: ignore[no-untyped-call]
        return values

    def _pass(self, number: int, _: Tensor) -> None:
        self.on_the_way(number)


def nothing(_: int) -> None:
    pass


def make(on_the_way: Callable[[int], object] = nothing, width: int = WIDTH) -> Net:
    torch.manual_seed(0)
    return Net(on_the_way, width).cuda()


def batch(rank: int, step: int, width: int = WIDTH) -> Tensor:
    dice = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, width, generator=dice, dtype=torch.float64).cuda()


def train(
    model: nn.Module, batches: Callable[[int], list[Tensor]], steps: int = STEPS
) -> None:
    """Each batch counts for as much as it does in the mean over ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        for each in batches(step):
            (model(each.requires_grad_()).square().mean()).backward()
        optimizer.step()


def compare(
    model: nn.Module, size: int, width: int = WIDTH, steps: int = STEPS
) -> None:
    """With one process: the mean over ranks is the sum of all, at a lower rate."""
    alone = make(width=width)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1 / size)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            alone(batch(rank, step, width)).square().mean().backward()
        optimizer.step()
    is_near(model, alone)


def is_near(model: nn.Module, alone: nn.Module) -> None:
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    worst = max((a - b).abs().max().item() for a, b in pairs)
    if not worst < 1e-12:
        raise ArithmeticError(f"DDP is off by {worst:g}")


@contextmanager
def asked(expected: int | None) -> Iterator[None]:
    """Expect the ranks to meet so many times, if they share memory of the GPU."""
    agree, count = DeviceExchange.agree, 0
    group: Any = dist.distributed_c10d._get_default_group()

    def counted(self: DeviceExchange, *given: Any) -> bool:  # noqa: ANN401
        nonlocal count
        count += 1
        return agree(self, *given)

    with patch.object(DeviceExchange, "agree", counted):
        yield
    if group.exchange is not None and expected not in (None, count):
        raise AssertionError(f"the ranks have met {count} times, not {expected}")


def buckets_are_reduced_together(rank: int, size: int) -> None:
    """Once per step, from the third on: then the slots are as large as they become."""
    kinds: list[dict[str, Any]] = [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    ]
    for kind in kinds:
        model = DDP(make(), bucket_cap_mb=2, **kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            with asked(1 if step > 1 else None):
                model(batch(rank, step)).square().mean().backward()
            optimizer.step()
        compare(model, size)


def a_large_model_has_larger_slots(rank: int, size: int) -> None:
    """74 MB of gradients, more than two slots have at first."""
    width = 1520
    model = DDP(make(width=width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        with asked(1 if step > 1 else None):
            model(batch(rank, step, width)).square().mean().backward()
        optimizer.step()
    compare(model, size, width)


def a_short_last_bucket_joins_the_others(rank: int, size: int) -> None:
    """Else the reducer would wait for it until it is no longer postponed."""

    def make_short() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(WIDTH, dtype=torch.float64).cuda(), make())

    model, alone = DDP(make_short(), bucket_cap_mb=1), make_short()
    for step in range(STEPS):
        started_s = time.monotonic()
        with asked(1 if step > 1 else None):
            model(batch(rank, step)).square().mean().backward()
        took_s = time.monotonic() - started_s
        if step > 1 and took_s > postponement.POSTPONED_S / 2:
            raise AssertionError(f"a pass took {took_s:.2f} s")
        for other in range(size):
            (alone(batch(other, step)).square().mean() / size).backward()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    for a, b in pairs:
        assert a.grad is not None
        assert b.grad is not None
        if not (a.grad - b.grad).abs().max().item() < 1e-12:
            raise ArithmeticError("a gradient is off")


def passes_inside_of_passes(rank: int, size: int) -> None:
    net = make()
    net.is_reentrant = True
    model = DDP(net, bucket_cap_mb=2)
    train(model, lambda step: [batch(rank, step)])
    compare(model, size)


def other_operations_on_the_way(rank: int, size: int) -> None:
    """Synchronous ones cut the buckets in two; what is waited for later is in order."""
    works: list[Any] = []

    def at_once(number: int) -> None:
        mine = torch.full((300_000,), rank + number, device="cuda")
        dist.all_reduce(mine)
        wanted = sum(range(size)) + size * number
        if not bool((mine == wanted).all()):
            raise ArithmeticError("a wrong sum on the way")

    def later(number: int) -> None:
        mine = torch.full((300_000,), rank + number, device="cuda")
        works.append(dist.all_reduce(mine, async_op=True))

    for on_the_way in (at_once, later):
        model = DDP(make(on_the_way), bucket_cap_mb=2)
        train(model, lambda step: [batch(rank, step)])
        compare(model, size)
    for count, work in enumerate(works):
        work.wait()
        number = LAYERS - 1 - count % LAYERS
        if not bool((work.result()[0] == sum(range(size)) + size * number).all()):
            raise ArithmeticError("a wrong sum, waited for afterwards")


def a_late_device_and_other_streams(rank: int, size: int) -> None:
    heavy = torch.randn(LATE_AFTER, LATE_AFTER, device="cuda")

    def compute(_: int) -> None:
        for _ in range(3):
            heavy @ heavy

    side, other = (torch.cuda.Stream() for _ in range(2))  # type: ignore[no-untyped-call]
    for forward, back in ((None, None), (side, side), (side, other), (None, other)):
        model = DDP(make(compute), bucket_cap_mb=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            with using(forward):
                loss = model(batch(rank, step)).square().mean()
            with using(back):
                if back is not None:
                    back.wait_stream(forward or torch.cuda.default_stream())
                loss.backward()
            torch.cuda.current_stream().wait_stream(back or torch.cuda.current_stream())
            optimizer.step()
            for stream in (side, other):
                stream.wait_stream(torch.cuda.current_stream())
        compare(model, size)


def using(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def a_slow_pass_is_reduced_meanwhile(rank: int, size: int) -> None:
    """Ranks then reduce other buckets together, or one by one, on a device that is
    late.
    """
    heavy = torch.randn(LATE_AFTER, LATE_AFTER, device="cuda")
    for slow in ((0,), range(size)):

        def wait(_: int, slow: Any = slow) -> None:  # noqa: ANN401
            for _ in range(3):
                heavy @ heavy
            if rank in slow:
                time.sleep(0.03)

        with patch.object(postponement, "POSTPONED_S", 0.01):
            model = DDP(make(wait), bucket_cap_mb=2)
            train(model, lambda step: [batch(rank, step)])
        compare(model, size)


def uneven_inputs(rank: int, size: int) -> None:
    """Who is done takes part with zeros, one bucket at a time."""
    model = DDP(make(), bucket_cap_mb=2)
    with Join([model], divide_by_initial_world_size=True):
        train(model, lambda step: [batch(rank, step)], STEPS + rank)
    alone = make()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1 / size)
    for step in range(STEPS + size - 1):
        optimizer.zero_grad()
        for other in range(size):
            if step < STEPS + other:
                alone(batch(other, step)).square().mean().backward()
        optimizer.step()
    is_near(model, alone)


def hooks_and_several_passes(rank: int, size: int) -> None:
    """torch's hook, one that lets the reducer reduce, and gradients of two passes."""
    model = DDP(make(), bucket_cap_mb=2)
    model.register_comm_hook(None, allreduce_hook)
    train(model, lambda step: [batch(rank, step)])
    compare(model, size)

    model = DDP(make(), bucket_cap_mb=2)
    reducer: Any = model.reducer

    def hook(_: object, bucket: Any) -> Any:  # noqa: ANN401 - torch compares them
        flat = bucket.buffer().div_(size)
        done = reducer._run_allreduce_hook(bucket)
        done.wait()
        return done.then(lambda _: flat)

    hook.__annotations__ = {}
    model.register_comm_hook(None, hook)
    train(model, lambda step: [batch(rank, step)])
    compare(model, size)

    model = DDP(make(), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(0, STEPS, 2):
        optimizer.zero_grad()
        with model.no_sync():
            model(batch(rank, step)).square().mean().backward()
        model(batch(rank, step + 1)).square().mean().backward()
        optimizer.step()
    alone = make()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1 / size)
    for step in range(0, STEPS, 2):
        optimizer.zero_grad()
        for other in range(size):
            for each in (step, step + 1):
                alone(batch(other, each)).square().mean().backward()
        optimizer.step()
    is_near(model, alone)


def two_models_in_one_pass(rank: int, size: int) -> None:
    first, second = (DDP(make(), bucket_cap_mb=2) for _ in range(2))
    models = nn.ModuleList([first, second])
    optimizer = torch.optim.SGD(models.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        values = batch(rank, step)
        (first(values).square().mean() + second(values).square().mean()).backward()
        optimizer.step()
    compare(first, size)
    compare(second, size)


def a_pass_that_fails(rank: int, size: int) -> None:
    """Its buckets are reduced all the same, and nothing waits for its end."""

    def fail(number: int) -> None:
        if number == 0:
            raise ZeroDivisionError

    model = DDP(make(fail), bucket_cap_mb=2)
    for _ in range(2):
        try:
            model(batch(rank, 0)).square().mean().backward()
        except (ZeroDivisionError, RuntimeError):
            continue  # the second time DDP says that the first has not ended
        raise AssertionError("no error")
    model = DDP(make(), bucket_cap_mb=2)
    train(model, lambda step: [batch(rank, step)])
    compare(model, size)


CHECKS: tuple[Callable[[int, int], None], ...] = (
    buckets_are_reduced_together,
    a_large_model_has_larger_slots,
    a_short_last_bucket_joins_the_others,
    passes_inside_of_passes,
    other_operations_on_the_way,
    a_late_device_and_other_streams,
    a_slow_pass_is_reduced_meanwhile,
    uneven_inputs,
    hooks_and_several_passes,
    two_models_in_one_pass,
    a_pass_that_fails,
)
