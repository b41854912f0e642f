"""What elastic training needs of a group, on every engine and algorithm.

A step that failed is repeated from its input, so no engine may write there; the result
goes to ``out`` without another copy; and an abort ends all calls at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from ringleader.collectives.cost_model import Network
from ringleader.errors import GroupAborted
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_threads, world

AT_ONCE_S = 2.0
"""From abort() to the error in the waiting thread, here and on the other ranks: 10 ms
where cores are free, 50 ms beside other tests, never the time limit of the call."""
SMALL, LARGE = 1_021, 400_009
OVER_LINKS = ["exchange", "direct", "ring", "doubling", "halving", "tree", "star"]
ENGINES = [
    ("single", "memory", 1, {}),
    *((n, "memory", 3, {"algorithm": n}) for n in [*OVER_LINKS, "hierarchy"]),
    ("tcp", "tcp", 3, {"algorithm": "ring"}),
    ("shm", "shm", 3, {"algorithm": "shm"}),
    ("grpc", "grpc", 3, {"algorithm": "ring"}),
    ("int8", "memory", 3, {"codec": "int8", "algorithm": "ring"}),
    ("onebit", "memory", 3, {"codec": "onebit", "algorithm": "ring"}),
    ("int8 hierarchy", "memory", 3, {"codec": "int8", "algorithm": "hierarchy"}),
]
every_engine = pytest.mark.parametrize(
    ("transport", "size", "how"),
    [each[1:] for each in ENGINES],
    ids=[each[0] for each in ENGINES],
)


def values(rank: int, count: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=made)


def two_hosts(group: Group) -> None:
    """Let the hierarchy have two levels."""
    network = Network.unknown(group.size)
    if group.size == 3:
        links, hosts = network.links, (0, 0, 1)
        handle_of(group).network = Network(links=links, hosts=hosts)


def reduce_one(group: Group, source: torch.Tensor, how: dict[str, str]) -> torch.Tensor:
    """The mean, out of place; with a codec also out of a residual, into an error."""
    out = torch.full_like(source, 77)
    if "codec" not in how:
        group.all_reduce(source, "mean", out=out, **how)  # type: ignore[arg-type]
        return out
    residual, error_out = torch.full_like(source, 1e-3), torch.empty_like(source)
    group.all_reduce(
        source,
        "mean",
        out=out,
        residual=residual,
        error_out=error_out,
        **how,  # type: ignore[arg-type]
    )
    assert bool((residual == 1e-3).all()), "the next attempt needs it again"
    return out


def reduce_all(
    groups: list[Group], inputs: list[torch.Tensor], how: dict[str, str]
) -> list[torch.Tensor]:
    pairs = zip(groups, inputs, strict=True)
    return run_threads([partial(reduce_one, g, i, how) for g, i in pairs])


@every_engine
def test_a_call_out_of_place_leaves_its_input_alone_and_copies_nothing(
    transport: str, size: int, how: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    real = np.copyto

    def copyto(out: np.ndarray, source: np.ndarray) -> None:
        copied.append(out.nbytes)
        real(out, source)

    with world(size, transport) as groups:
        for group in groups:
            two_hosts(group)
        for count in (SMALL, LARGE):
            inputs = [values(r, count) for r in range(size)]
            exact = torch.stack(inputs).double().mean(0)
            if transport != "shm" and "codec" not in how:  # they send copies
                monkeypatch.setattr("ringleader.engine.call.np.copyto", copyto)
            outs = reduce_all(groups, inputs, how)
            monkeypatch.undo()
            for rank, (source, out) in enumerate(zip(inputs, outs, strict=True)):
                assert torch.equal(source, values(rank, count))
                assert torch.equal(out, outs[0])
            if "codec" not in how:
                assert torch.allclose(outs[0].double(), exact, rtol=1e-5, atol=1e-6)
                # One rank has to put its values into the result; nobody else does.
                assert sum(copied) == (4 * count if size == 1 else 0)
            copied.clear()


class Waiting(threading.Thread):
    """A rank in an all_reduce that cannot end; knows when the error came."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.ended_s = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._call()
        except GroupAborted as exc:
            self.ended_s, self.error = time.perf_counter(), exc


def abort_once(transport: str, size: int, how: dict[str, str], count: int) -> float:
    """Seconds until the last waiting rank has seen the abort; one rank is absent."""
    with world(size, transport) as groups:
        for group in groups:
            two_hosts(group)
        inputs = [values(r, count) for r in range(size)]
        outs = [torch.empty(count) for _ in range(size)]
        waiting = [
            Waiting(
                partial(g.all_reduce, inputs[r], out=outs[r], **how)  # type: ignore[arg-type]
            )
            for r, g in enumerate(groups[:-1])
        ]
        for thread in waiting:
            thread.start()
        time.sleep(0.03)
        started_s = time.perf_counter()
        for _ in range(2):  # a second call changes nothing
            groups[0].abort("view 8 is being installed")
        for thread in waiting:
            thread.join(30)
            assert "view 8 is being installed" in str(thread.error)
        for rank, source in enumerate(inputs):
            assert torch.equal(source, values(rank, count)), "a failed call wrote it"
        return max(thread.ended_s for thread in waiting) - started_s


@every_engine
def test_an_abort_ends_every_waiting_call_at_once(
    transport: str, size: int, how: dict[str, str]
) -> None:
    if size == 1:
        pytest.skip("a rank alone never waits")
    for count in (SMALL, LARGE):
        assert abort_once(transport, size, how, count) <= AT_ONCE_S
