"""What elastic training needs of a group, on every engine and algorithm.

A step that failed is repeated from its input, so no engine may write there; the result
goes to ``out`` without another copy; and an abort ends all calls at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from ringleader.collectives.cost_model import Network
from ringleader.engine import waiter
from ringleader.errors import GroupAborted
from ringleader.groups import runner
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_threads, world
from tests.kit.sleeping_calls import SleepingCalls

FOREVER_S, WOKEN_S = 3600.0, 40.0
"""Calls sleep this long if nothing wakes them; they must be back this much sooner.
benchmarks/view_group.py measures how soon."""
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


def two_hosts(groups: list[Group]) -> None:
    """Let the hierarchy have two levels."""
    if len(groups) == 3:
        links = Network.unknown(3).links
        for group in groups:
            handle_of(group).network = Network(links=links, hosts=(0, 0, 1))


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
        two_hosts(groups)
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


def wait_and_fail(call: Callable[[], object], errors: list[GroupAborted]) -> None:
    """Make a call that cannot end; keep the error that ends it."""
    try:
        call()
    except GroupAborted as exc:
        errors.append(exc)


@every_engine
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_an_abort_wakes_every_waiting_call(
    transport: str,
    size: int,
    how: dict[str, str],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank is absent; an abort on another ends the calls, here and there.

    The engine looks around every NAP_S, so a wake-up that never came would only cost
    that. Here it costs the test.
    """
    if size == 1:
        pytest.skip("a rank alone never waits")
    with world(size, transport) as groups:
        two_hosts(groups)
        inputs = [values(r, count) for r in range(size)]
        calls, errors = SleepingCalls(monkeypatch), list[GroupAborted]()
        monkeypatch.setattr(waiter, "NAP_S", FOREVER_S)
        monkeypatch.setattr(runner, "NAP_S", FOREVER_S)
        waits = [
            partial(g.all_reduce, i, out=torch.empty(count), timeout_s=FOREVER_S, **how)  # type: ignore[arg-type]
            for g, i in zip(groups[:-1], inputs, strict=False)
        ]
        threads = [
            threading.Thread(target=wait_and_fail, args=(wait, errors), daemon=True)
            for wait in waits
        ]
        for thread in threads:
            thread.start()
        calls.wait_for(*threads)
        for _ in range(2):  # a second call changes nothing
            groups[0].abort("view 8 is being installed")
        for thread in threads:
            thread.join(WOKEN_S)
            assert not thread.is_alive(), "nothing woke a waiting call"
        assert len(errors) == len(threads)
        assert all("view 8 is being installed" in str(error) for error in errors)
        for rank, source in enumerate(inputs):
            assert torch.equal(source, values(rank, count)), "a failed call wrote it"
