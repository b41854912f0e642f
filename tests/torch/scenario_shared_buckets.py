"""DistributedDataParallel whose buckets are in memory that all ranks have mapped."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from ringleader.backend import shared_buckets
from ringleader.backend.open_file import OpenFile
from tests.kit.reference import (
    STEPS,
    backward,
    batch,
    check_state,
    mse,
    net,
    sgd,
    single,
    train,
    train_alone,
    train_rank,
)
from tests.torch.scenario_ddp import inner

WIDTHS = 8, 600, 600, 5
"""The gradient of the second layer is 1.4 MB: a bucket that is worth it."""


def wide(*, dtype: torch.dtype = torch.float32) -> nn.Module:
    return copy.deepcopy(net(*WIDTHS)).to(dtype)


def mapped() -> set[str]:
    """The files in torch's shared memory that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/dev/shm/torch_" in line}


@contextmanager
def mapping(num_files: int) -> Iterator[None]:
    """Expect so many files more than before, and none of them in the end."""
    gc.collect()
    before = mapped()
    yield
    gc.collect()
    assert len(mapped() - before) == num_files, mapped() - before


def ddp_shared_buckets(rank: int, size: int) -> None:
    """Each rank has mapped all buckets and the sum; all leave with the model."""
    before = mapped()
    for dtype, rel in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        expected = train_alone(net(*WIDTHS), mse, size)
        with mapping(0):
            model = DDP(wide(dtype=dtype))
            train_rank(model, mse, rank)
            assert len(mapped() - before) == size + 1
            check_state(inner(model), expected, rel)
            del model


def ddp_shared_buckets_have_the_bits_of_others(rank: int, size: int) -> None:
    """Buckets that hold the gradients themselves are not moved, and add up alike."""
    results = []
    for is_view in (False, True):
        with mapping(0):
            model = DDP(wide(), gradient_as_bucket_view=is_view)
            before = mapped()
            train_rank(model, mse, rank)
            assert len(mapped() - before) == (0 if is_view else size + 1)
            results.append(inner(model))
            del model
    ours, plain = results
    for name, value in ours.items():
        assert torch.equal(value, plain[name]), name


def ddp_shared_buckets_of_16_bit_numbers(rank: int, size: int) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        results = []
        for is_view in (False, True):
            layer = net(8, 80_000).to(dtype)
            model = DDP(layer, gradient_as_bucket_view=is_view)
            for step in range(STEPS):
                model.zero_grad()
                x = batch(rank, step, next(layer.parameters()))[0]
                backward(model(x).float().square().mean())
            results.append([parameter.grad for parameter in model.parameters()])
        for ours, plain in zip(*results, strict=True):
            assert ours is not None
            assert plain is not None
            assert torch.equal(ours, plain)


def ddp_shared_buckets_without_rebuilding(rank: int, size: int) -> None:
    """Buckets that are never made anew are shared, too; small ones are not."""
    for is_static in (False, True):
        with mapping(0):
            model = DDP(
                wide(),
                bucket_cap_mb=1,
                find_unused_parameters=not is_static,
                static_graph=is_static,
            )
            before = mapped()
            train_rank(model, mse, rank)
            assert len(mapped() - before) == size + 1
            check_state(inner(model), train_alone(net(*WIDTHS), mse, size))
            del model


def ddp_shared_buckets_and_uneven_inputs(rank: int, size: int) -> None:
    """Who is done takes part with zeros, which are in no bucket."""
    model, num = DDP(wide()), STEPS + rank
    with Join([model]):
        train(model, lambda m, s: mse(m, rank, s), sgd(model.parameters()), num)

    def while_it_lasts(m: nn.Module, r: int, step: int) -> Tensor | float:
        return mse(m, r, step) if step < STEPS + r else 0.0

    steps = STEPS + size - 1
    expected = train_alone(net(*WIDTHS), while_it_lasts, size, steps=steps)
    check_state(inner(model), expected)


def ddp_shared_buckets_without_room_on_one_rank(rank: int, size: int) -> None:
    """All ranks go on as if none had moved its bucket, and try no more."""
    left = 1 << 60 if rank == 1 else 0
    with mapping(0), patch.object(shared_buckets, "LEFT_BYTES", left):
        model = DDP(wide())
        before = mapped()
        train_rank(model, mse, rank)
        # The other ranks had moved theirs already when they heard of it.
        assert len(mapped() - before) == (0 if rank == 1 else 1)
        check_state(inner(model), train_alone(net(*WIDTHS), mse, size))
        del model


def ddp_shared_buckets_of_ranks_that_cannot_look(rank: int, size: int) -> None:
    """As in another container: one rank cannot map the files of the others."""

    def refuse(file: OpenFile, num_bytes: int) -> None:
        raise FileNotFoundError(2, "No such file", f"/proc/{file.process}")

    open_file = patch.object(OpenFile, "map", refuse) if rank == 1 else nullcontext()
    with mapping(0), open_file:
        model = DDP(wide())
        before = mapped()
        train_rank(model, mse, rank)
        assert len(mapped() - before) == 1
        check_state(inner(model), train_alone(net(*WIDTHS), mse, size))
        del model


def ddp_shared_buckets_and_hooks_that_reduce(rank: int, size: int) -> None:
    """A hook that lets the reducer reduce looks for the sum in the bucket."""
    model = DDP(wide())
    reducer: Any = model.reducer

    def hook(_: object, bucket: Any) -> Any:  # noqa: ANN401 - torch compares them
        flat = bucket.buffer().div_(size)
        done = reducer._run_allreduce_hook(bucket)
        return done.then(lambda _: flat)

    hook.__annotations__ = {}
    with mapping(0):
        model.register_comm_hook(None, hook)
        train_rank(model, mse, rank)
        check_state(inner(model), train_alone(net(*WIDTHS), mse, size))


def ddp_shared_buckets_forbidden_on_one_rank(rank: int, size: int) -> None:
    with patch.dict(os.environ, {"RINGLEADER_SHARED_BUCKETS": "01"[rank == 0]}):
        model = DDP(wide())
    with mapping(0):
        train_rank(model, mse, rank)
        check_state(inner(model), train_alone(net(*WIDTHS), mse, size))


def ddp_shared_buckets_of_two_models(rank: int, size: int) -> None:
    """Their steps alternate, and one is gone before the other."""
    first, second = DDP(wide()), DDP(single(net(*WIDTHS, seed=9)))
    with mapping(0):
        before = mapped()
        train_rank(first, mse, rank)
        train_rank(second, mse, rank)
        assert len(mapped() - before) == 2 * (size + 1)
        check_state(inner(first), train_alone(net(*WIDTHS), mse, size))
        del first
        train_rank(second, mse, rank)
        assert len(mapped() - before) == size + 1
        del second
