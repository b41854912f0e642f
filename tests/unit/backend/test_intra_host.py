"""Another backend inside a host, ours across: Gloo stands for NCCL on machines without.

The ranks are threads; Gloo's groups and its connections are real. What is particular to
NCCL, its streams, is checked on a GPU by tests/torch/check_nccl.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, HashStore, ReduceOp

from ringleader.backend import intra_host
from ringleader.backend.intra_host import IntraHostLayer, check_name
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.rank_facts import RankFacts, check_intra_host
from ringleader.backend.staging import HostStaging
from ringleader.collectives.cost_model import Network
from ringleader.errors import ConfigError, RingleaderError
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_world
from tests.kit.fake_accelerator import PACES, Accelerator

HOSTS = (0, 0, 1, 0)
"""3 + 1 ranks; ranks 1 and 3 are no local roots."""
SIZE, COUNT = len(HOSTS), 5001
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32)

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="no Gloo")


def given(rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Whole numbers, so small that 16 bits hold their sums."""
    return ((torch.arange(COUNT) * 7 + rank * 13) % 31 - 15).to(dtype)


def exact(op: str, dtype: torch.dtype = torch.float64) -> Tensor:
    every = torch.stack([given(rank) for rank in range(SIZE)])
    if op in ("min", "max"):
        return every.amin(0) if op == "min" else every.amax(0)
    total = every.sum(0)
    if op == "mean":
        total /= SIZE
    return total if dtype.is_floating_point else total.trunc()


class Store:
    """One store for all threads."""

    def __init__(self) -> None:
        self.store = HashStore()

    def layer(self, group: Group, hosts: tuple[int, ...] = HOSTS) -> IntraHostLayer:
        network = replace(Network.unknown(len(hosts)), hosts=hosts)
        handle_of(group).network = network
        layer = IntraHostLayer.create("gloo", group, self.store)
        assert layer is not None
        return layer


def test_sums_and_means_are_those_of_a_flat_group() -> None:
    """ZF-3: means are over all ranks, whatever NCCL or Gloo calls a mean.

    ZF-14: the backend inside the host is really initialized, and ZF-15: a broadcast
    from a rank that is no local root first goes to its own local root.
    """
    shared = Store()

    def body(group: Group) -> None:
        wrapped = RingleaderGroup.wrap(group, shared.store, list(range(SIZE)))
        layer = wrapped.layer = shared.layer(group)
        for dtype in DTYPES:
            for op in ("sum", "mean", "min", "max"):
                opts = AllreduceOptions()
                name = "AVG" if op == "mean" else op.upper()
                opts.reduceOp = ReduceOp(getattr(ReduceOp, name))
                opts.asyncOp = op == "max"
                tensor = given(group.rank, dtype)
                assert layer.serves(tensor, op)
                work: Any = wrapped.allreduce([tensor], opts)
                work.wait()
                want = exact(op, dtype).to(dtype)
                assert torch.equal(tensor, want), (dtype, op)
        for root in range(SIZE):
            tensor = given(group.rank)
            work = wrapped.broadcast([tensor], root)
            work.wait()
            assert torch.equal(tensor, given(root)), f"root {root}"
        other = given(group.rank).to(torch.complex64)  # not by the layer
        rows = given(group.rank).expand(2, COUNT).t().contiguous().t()  # with gaps
        for tensor in (other, rows):
            handle = wrapped.allreduce([tensor])
            assert handle is not None
            handle.wait()
            want = exact("sum").to(tensor.dtype)
            assert torch.equal(tensor, want.expand(tensor.shape))
        layer.close()

    run_world(SIZE, body)


def test_across_hosts_it_is_encoded_and_the_error_is_reported() -> None:
    shared = Store()

    def body(group: Group) -> tuple[Tensor, Tensor]:
        wrapped = RingleaderGroup.wrap(group, shared.store, list(range(SIZE)))
        wrapped.layer = shared.layer(group)
        tensor, lost = given(group.rank).float() / 7, torch.full((COUNT,), 77.0)
        wrapped.allreduce_coded(tensor, "int8", op="sum", error_out=lost).wait()
        wrapped.layer.close()
        return tensor, lost

    ranks = run_world(SIZE, body)
    assert all(torch.equal(tensor, ranks[0][0]) for tensor, _ in ranks)
    missing = exact("sum") / 7 - ranks[0][0].double()
    reported = torch.stack([lost for _, lost in ranks]).double().sum(0)
    assert 0 < float(missing.abs().max()) < 2 * (4 * 15 / 7) / 254
    assert float((reported - missing).abs().max()) < 1e-5
    assert not ranks[1][1].any()
    assert not ranks[3][1].any()


def test_a_failure_across_hosts_reaches_the_ranks_that_wait_inside() -> None:
    """They would wait for Gloo or NCCL, which know nothing of it, until its timeout."""
    shared = Store()

    def body(group: Group) -> str:
        wrapped = RingleaderGroup.wrap(group, shared.store, list(range(SIZE)))
        layer = wrapped.layer = shared.layer(group)
        if group.rank == 2:
            assert layer.across is not None
            layer.across.abort("that is enough")
        with pytest.raises(RingleaderError) as caught:
            _wait(wrapped.allreduce([given(group.rank)]))
        layer.close()
        return str(caught.value)

    for text in run_world(SIZE, body):
        assert "that is enough" in text


def _wait(work: Any) -> None:  # noqa: ANN401
    work.wait()


class AsNccl:
    """Gloo with the manners of NCCL: it works on what the current stream has done."""

    def __init__(self, backend: Any, device: Accelerator) -> None:  # noqa: ANN401
        self._backend, self._device = backend, device

    def __getattr__(self, name: str) -> Callable[..., object]:
        operation = getattr(self._backend, name)

        def run(*arguments: object) -> object:
            self._device.record_event().synchronize()
            return operation(*arguments)

        return run


@pytest.mark.parametrize("pace", PACES)
def test_tensors_of_a_device_are_staged_between_the_layers_only(pace: str) -> None:
    shared = Store()

    def body(group: Group) -> None:
        layer = shared.layer(group)
        device = Accelerator(pace, seed=group.rank)
        layer._backend = AsNccl(layer._backend, device)
        stage, tensor = HostStaging(device), given(group.rank, torch.float32)
        for turn in range(2):
            steps = layer.broadcast(3) if turn else layer.all_reduce("sum")
            if turn:
                tensor = given(group.rank, torch.float32)
            work, deliver = stage.in_layers(group, steps, [tensor], async_op=True)
            work.wait(120)
            deliver()
            device.record_event().synchronize()
            want = given(3) if turn else exact("sum")
            assert torch.equal(tensor.double(), want)
        layer.close()

    run_world(SIZE, body)


def test_on_one_host_there_is_no_layer_across_and_alone_none_inside() -> None:
    shared = Store()

    def body(group: Group) -> None:
        layer = shared.layer(group, (0,) * SIZE)
        assert layer.across is None
        tensor = given(group.rank)
        layer.all_reduce("mean").run([tensor])
        assert torch.equal(tensor, exact("mean"))
        handle_of(group).network = Network.unknown(SIZE)
        assert IntraHostLayer.create("gloo", group, shared.store) is None

    run_world(SIZE, body)


def test_all_ranks_must_ask_for_the_same_and_have_it() -> None:
    """ZF-14: what cannot be initialized is refused on all ranks, with the rank."""
    first = RankFacts(True, "2.13.0", "oak", "nccl")
    assert RankFacts.decode(first.encode()) == first
    check_intra_host([first, first])
    with pytest.raises(ConfigError, match=r"nccl on rank 0 \(oak\) and not set on ran"):
        check_intra_host([first, replace(first, host="elm", intra_host="")])
    with pytest.raises(ConfigError, match=r"cannot run on rank 1 \(elm\)"):
        check_intra_host([first, replace(first, host="elm", intra_host="!nccl")])
    with pytest.raises(ConfigError, match="choose one of: nccl, gloo"):
        check_name("mpi")


def test_a_rank_without_it_is_named_when_the_group_forms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intra_host, "nccl_status", lambda: (False, "no GPU"))
    store = HashStore()

    def body(group: Group) -> str:
        with pytest.raises(ConfigError) as caught:
            RingleaderGroup.wrap(group, store, [0, 1], "nccl")
        return str(caught.value)

    for text in run_world(2, body):
        assert "cannot run on rank 0" in text
