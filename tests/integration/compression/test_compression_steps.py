"""Steps of a compressor: repeat, resume, reset, and their bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ringleader.collectives.cost_model import LinkCost, Network
from ringleader.compression import Compressor, compressor
from ringleader.compression.compressor_state import ParameterSlice
from ringleader.errors import (
    CallMismatch,
    ConfigError,
    GroupAborted,
    PeerLost,
    RingleaderError,
)
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_threads, run_world, world
from ringleader.transport.socket_link import SocketLink

SCHEMES = [
    "bf16",
    "int8",
    "int8-stochastic",
    "onebit",
    "topk:0.05",
    "randomk:0.05",
    "powersgd:2",
]
SOON_S = 30.0
SHAPES = {"conv": (16, 3, 5, 5), "matrix": (60, 50), "bias": (60,)}

Tensors = dict[str, Tensor]


def gradients(rank: int, step: int) -> Tensors:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {
        name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()
    }


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(tensor, b[name]) for name, tensor in a.items()
    )


# -- resume ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "momentum"),
    [*((name, None) for name in SCHEMES), ("topk:0.05", 0.9), ("randomk:0.05", 0.9)],
)
def test_a_resumed_run_continues_bit_by_bit(name: str, momentum: float | None) -> None:
    """The seed of the state replaces that of the constructor."""

    def live(group: Group) -> bool:
        first = compressor(name, momentum=momentum, seed=5)
        for step in range(3):
            first.average(group, gradients(group.rank, step))
        second = compressor(name, momentum=momentum, seed=6)
        second.load_state_dict(first.state_dict())
        for step in range(3, 6):
            mine, theirs = (gradients(group.rank, step) for _ in range(2))
            first.average(group, mine)
            second.average(group, theirs)
            if not same(mine, theirs):
                return False
        return same(first.state_dict(), second.state_dict())

    assert all(run_world(2, live))


def test_a_run_that_forgets_does_not_continue_so() -> None:
    """The check above fails without the residuals."""

    def live(group: Group) -> bool:
        first, second = compressor("topk:0.05"), compressor("topk:0.05")
        first.average(group, gradients(group.rank, 0))
        mine, theirs = (gradients(group.rank, 1) for _ in range(2))
        first.average(group, mine)
        second.average(group, theirs)
        return same(mine, theirs)

    assert not any(run_world(2, live))


def test_a_state_is_tensors_only_and_a_copy() -> None:
    def live(group: Group) -> None:
        ours = compressor("powersgd:1")
        ours.average(group, gradients(group.rank, 0))
        state = ours.state_dict()
        assert all(isinstance(value, Tensor) for value in state.values())
        assert state["residual.matrix"].any()
        assert not state["residual.bias"].any()
        held = {key: value.clone() for key, value in state.items()}
        for step in (1, 2):
            ours.average(group, gradients(group.rank, step))
        assert same(state, held)

    run_world(2, live)


def test_another_state_is_refused() -> None:
    ours = compressor("topk:0.01")
    with pytest.raises(ConfigError, match="the state is of 'int8', this compressor is"):
        ours.load_state_dict(compressor("int8").state_dict())
    with pytest.raises(ConfigError, match="seed, step missing"):
        ours.load_state_dict({"scheme": torch.ones(1)})


def test_a_state_of_another_model_is_refused() -> None:
    saved = compressor("topk:0.01").state_dict()
    saved["residual.matrix"] = torch.zeros(7)

    def live(group: Group) -> None:
        ours = compressor("topk:0.01")
        ours.load_state_dict(saved)
        with pytest.raises(
            ConfigError, match="'matrix' has 3000 values, but its residual has 7"
        ):
            ours.average(group, gradients(0, 0))

    with world(2) as groups:
        run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]


def test_reset_is_as_new() -> None:
    def live(group: Group) -> bool:
        used, new = compressor("powersgd:2"), compressor("powersgd:2")
        used.average(group, gradients(group.rank, 0))
        used.reset()
        mine, theirs = (gradients(group.rank, 1) for _ in range(2))
        used.average(group, mine)
        new.average(group, theirs)
        return same(mine, theirs) and same(used.state_dict(), new.state_dict())

    assert all(run_world(2, live))


def test_auto_keeps_nothing_where_it_does_not_compress() -> None:
    """A fast, a slow, then a fast network: the residual of the slow phase is sent."""

    def lan(bandwidth: float) -> Network:
        row = (LinkCost(latency_s=1e-4, bandwidth=bandwidth),) * 2
        return Network(links=(row, row), hosts=(0, 1))

    def live(group: Group) -> list[tuple[Tensor, Tensor]]:
        ours, seen = compressor("auto"), []
        for step, speed in enumerate((1e10, 1e6, 1e10)):
            handle_of(group).network = lan(speed)
            before = ours.state_dict().get("residual.matrix", torch.zeros(3000))
            given = {"matrix": gradients(group.rank, step)["matrix"]}
            total = given["matrix"].double().view(-1) + before
            ours.average(group, given)
            after = ours.state_dict().get("residual.matrix")
            assert (after is None) == (step == 0)
            assert after is None or bool(after.any()) == (step == 1)
            applied = total if after is None else total - after
            seen.append((applied, given["matrix"].double().view(-1)))
        return seen

    for first, second in zip(*run_world(2, live), strict=True):
        torch.testing.assert_close(first[1], second[1], rtol=0, atol=0)
        mean = (first[0] + second[0]) / 2
        torch.testing.assert_close(first[1], mean, rtol=0, atol=1e-6)


# -- steps that fail -------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMES)
def test_a_step_that_loses_a_peer_leaves_no_trace(name: str) -> None:
    """One bucket has succeeded when a rank goes; the others repeat the step as if it
    had never begun.
    """
    ours = [compressor(name) for _ in range(3)]

    def fail(group: Group) -> Tensors:
        mine = ours[group.rank]
        mine.average(group, gradients(group.rank, 0))
        before = mine.state_dict()
        tensors = gradients(group.rank, 1)
        mine.begin()
        mine.average(group, {"matrix": tensors.pop("matrix")})
        if group.rank == 2:
            group.close()
        else:
            with pytest.raises((PeerLost, GroupAborted)):
                mine.average(group, tensors)
            mine.abort()
            assert same(mine.state_dict(), before)
        return before

    def repeat(group: Group) -> None:
        undisturbed = compressor(name)
        undisturbed.load_state_dict(states[group.rank])
        results = [gradients(group.rank, 1) for _ in range(2)]
        undisturbed.average(group, results[0])
        ours[group.rank].average(group, results[1])
        assert same(*results)
        assert same(ours[group.rank].state_dict(), undisturbed.state_dict())

    states = run_world(3, fail, within_s=SOON_S)
    run_world(2, repeat, within_s=SOON_S)


def attempt_out_of_place(mine: Compressor, group: Group, step: int) -> Tensor:
    source = gradients(group.rank, step)["matrix"].view(-1)
    out, kept = torch.empty_like(source), source.clone()
    mine.begin()
    try:
        slices = [ParameterSlice("matrix", 0, (60, 50))]
        mine.reduce_into(out, group, source, slices)
    finally:
        assert torch.equal(source, kept)
    mine.commit()
    return out


@pytest.mark.parametrize("name", SCHEMES)
def test_an_aborted_attempt_is_repeated_from_its_input_by_fewer_ranks(
    name: str,
) -> None:
    """Invariant I13 of elastic training: residual and basis are as before the attempt,
    whichever thread ended it, and the input was not written."""
    ours = [compressor(name) for _ in range(3)]
    through = threading.Barrier(3)

    def attempt(group: Group, step: int) -> Tensor:
        return attempt_out_of_place(ours[group.rank], group, step)

    def interrupted(group: Group) -> Tensors:
        mine = ours[group.rank]
        attempt(group, 0)
        through.wait(SOON_S)  # nobody is in the first step any more
        before = mine.state_dict()
        if group.rank == 2:
            group.abort("a machine was lost")
        with pytest.raises(GroupAborted):
            attempt(group, 1)
        mine.abort()
        assert same(mine.state_dict(), before)
        return before

    def repeat(group: Group) -> tuple[Tensor, Tensor]:
        rank = group.rank
        result = attempt(group, 1)
        applied = gradients(rank, 1)["matrix"].double().view(-1)
        applied = applied + states[rank].get("residual.matrix", torch.zeros(3000))
        applied -= ours[rank].state_dict().get("residual.matrix", torch.zeros(3000))
        return result, applied

    states = run_world(3, interrupted, within_s=SOON_S)
    (first, a), (second, b) = run_world(2, repeat, within_s=SOON_S)
    assert torch.equal(first, second)
    # What the two contributed, less what they still owe, is the mean: nothing of the
    # attempt that failed is in it, and nothing was lost.
    torch.testing.assert_close(first.double(), (a + b) / 2, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["int8", "topk:0.05", "powersgd:2"])
def test_a_newcomer_with_the_shared_state_agrees_with_the_others(name: str) -> None:
    ours = [compressor(name) for _ in range(2)]
    run_world(2, lambda g: ours[g.rank].average(g, gradients(g.rank, 0)))
    shared = ours[0].shared_state()
    assert same(shared, ours[1].shared_state())
    assert not [key for key in shared if key.startswith("residual")]
    newcomer = compressor(name)
    newcomer.load_state_dict(shared)
    ours.append(newcomer)

    def live(group: Group) -> Tensor:
        given = gradients(group.rank, 1)
        ours[group.rank].average(group, given)
        return given["matrix"]

    first, *others = run_world(3, live)
    assert all(torch.equal(first, each) for each in others)


def test_a_group_where_another_was_in_memory_is_another_group() -> None:
    """Otherwise a rank that used the old group would skip the agreement check."""
    ours = [compressor("int8") for _ in range(2)]
    kept = []
    for step in range(40):
        with world(2) as groups:

            def live(group: Group, step: int = step) -> None:
                ours[group.rank].average(group, gradients(group.rank, step))

            run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]
            kept.append(groups[0])  # so that none comes where it is
        del groups


def test_a_step_alone_is_aborted_by_itself() -> None:
    def live(group: Group) -> None:
        ours = compressor("topk:0.05")
        ours.average(group, gradients(group.rank, 0))
        before = ours.state_dict()
        if group.rank == 1:
            group.close()
            return
        with pytest.raises(RingleaderError):
            ours.average(group, gradients(group.rank, 1))
        assert same(ours.state_dict(), before)
        with pytest.raises(ConfigError, match=r"commit\(\) without begin"):
            ours.commit()

    run_world(2, live)


def test_several_calls_are_one_step() -> None:
    def live(group: Group) -> tuple[int, int]:
        ours = compressor("randomk:0.5")
        ours.begin()
        for name, tensor in gradients(group.rank, 0).items():
            ours.average(group, {name: tensor})
        during = int(ours.state_dict()["step"])
        ours.commit()
        return during, int(ours.state_dict()["step"])

    assert run_world(2, live) == [(0, 1)] * 2


@pytest.mark.parametrize("name", SCHEMES)
def test_a_parameter_twice_in_one_step_loses_nothing(name: str) -> None:
    def live(group: Group) -> tuple[Tensor, Tensor]:
        ours = compressor(name)
        inputs, outputs = torch.zeros(60, 50), torch.zeros(60, 50)
        ours.begin()
        for step in range(2):
            matrix = gradients(group.rank, step)["matrix"]
            inputs += matrix
            ours.average(group, {"matrix": matrix})
            outputs += matrix
        ours.commit()
        residual = ours.state_dict()["residual.matrix"].view(60, 50)
        return inputs.double() - residual, outputs.double()

    (first, applied), (second, _) = run_world(2, live)
    assert (first + second - 2 * applied).abs().max() < 1e-4


# -- ranks that differ -----------------------------------------------------------------


def other_scheme(rank: int) -> tuple[Compressor, Tensors]:
    return compressor(f"randomk:0.{rank + 1}"), gradients(0, 0)


def other_seed(rank: int) -> tuple[Compressor, Tensors]:
    return compressor("randomk:0.1", seed=rank), gradients(0, 0)


def other_step(rank: int) -> tuple[Compressor, Tensors]:
    state = compressor("randomk:0.1").state_dict()
    ours = compressor("randomk:0.1")
    ours.load_state_dict({**state, "step": torch.tensor(rank)})
    return ours, gradients(0, 0)


def other_shape(rank: int) -> tuple[Compressor, Tensors]:
    """The number of values is the same, the matrices differ."""
    return compressor("powersgd:1"), {"a": torch.ones((20, 30) if rank else (30, 20))}


def other_names(rank: int) -> tuple[Compressor, Tensors]:
    return compressor("randomk:0.1"), {"ab"[rank]: torch.ones(30)}


def other_basis(rank: int) -> tuple[Compressor, Tensors]:
    ours = compressor("powersgd:1")
    state = ours.state_dict()
    state["basis.a"] = torch.full((20, 1), 1.0 + rank)
    ours.load_state_dict(state)
    return ours, {"a": torch.ones(30, 20)}


@pytest.mark.parametrize(
    "differ",
    [other_scheme, other_seed, other_step, other_shape, other_names, other_basis],
)
def test_ranks_that_mean_something_else_are_told(
    differ: Callable[[int], tuple[Compressor, Tensors]],
) -> None:
    """Their sums would be meaningless without an error."""

    def live(group: Group) -> None:
        ours, tensors = differ(group.rank)
        with pytest.raises(CallMismatch, match=f"rank {1 - group.rank}"):
            ours.average(group, tensors)

    run_world(2, live, within_s=SOON_S)


def test_states_of_different_steps_are_noticed() -> None:
    """It is also detected in a group whose ranks agreed before."""

    def live(group: Group) -> None:
        ours = compressor("randomk:0.1")
        for step in range(2):
            ours.average(group, gradients(group.rank, step))
        state = ours.state_dict()
        state["step"] -= group.rank
        ours.load_state_dict(state)
        with pytest.raises(CallMismatch, match=f"rank {1 - group.rank}"):
            ours.average(group, gradients(group.rank, 2))

    run_world(2, live, within_s=SOON_S)


def test_a_newcomer_is_noticed_in_a_new_group() -> None:
    """After a regroup a new rank has no state and must load one."""
    survivor = compressor("powersgd:1")

    def first(group: Group) -> None:
        ours = survivor if group.rank == 0 else compressor("powersgd:1")
        ours.average(group, gradients(group.rank, 0))

    def second(group: Group) -> str:
        ours = survivor if group.rank == 0 else compressor("powersgd:1")
        with pytest.raises(CallMismatch) as caught:
            ours.average(group, gradients(group.rank, 1))
        return str(caught.value)

    run_world(2, first)
    assert all("call reset(), or load" in text for text in run_world(2, second))


# -- momentum correction ---------------------------------------------------------------


def test_what_is_sent_late_comes_with_its_momentum() -> None:
    """The velocity of a constant gradient tends to ten times it, as in plain SGD."""
    momentum, steps = 0.9, 150

    def live(group: Group) -> Tensor:
        ours, moved = compressor("topk:0.3", momentum=momentum), torch.zeros(1000)
        for _ in range(steps):
            tensors = {"w": torch.linspace(0.5, 1.5, 1000)}
            ours.average(group, tensors)
            moved += tensors["w"]
        return moved / steps

    plain = torch.linspace(0.5, 1.5, 1000) / (1 - momentum)
    moved = run_world(3, live)[0]
    # Masked where it was sent, so below plain momentum, yet well above none.
    assert (moved < plain).all()
    assert (moved > 1.5 * torch.linspace(0.5, 1.5, 1000)).all()


def test_velocity_and_residual_are_masked_where_they_were_sent() -> None:
    def live(group: Group) -> None:
        ours = compressor("topk-exact:0.1", momentum=0.5)
        for step in range(3):
            tensors = gradients(group.rank, step)
            ours.average(group, tensors)
        state = ours.state_dict()
        for name, shape in SHAPES.items():
            residual, velocity = state[f"residual.{name}"], state[f"velocity.{name}"]
            sent = round(0.1 * torch.Size(shape).numel())
            assert int((residual == 0).sum()) == sent
            assert torch.equal(residual == 0, velocity == 0)

    run_world(3, live)


# -- what is not finite ----------------------------------------------------------------


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["fp16", *SCHEMES])
def test_what_is_not_finite_is_seen_by_all_and_then_forgotten(
    name: str, bad: float
) -> None:
    """As GradScaler needs: every rank sees the bad step, and the next is good."""

    def live(group: Group) -> tuple[Tensors, bool]:
        ours = compressor(name)
        ours.average(group, gradients(group.rank, 0))
        tensors = gradients(group.rank, 1)
        if group.rank == 1:
            tensors["matrix"][7, 7] = bad
        ours.average(group, tensors)
        is_bad = not tensors["matrix"].isfinite().all()
        assert all(t.isfinite().all() for k, t in ours.state_dict().items())
        after = gradients(group.rank, 2)
        ours.average(group, after)
        return after, is_bad

    results = run_world(3, live)
    for after, is_bad in results:
        assert is_bad
        assert all(tensor.isfinite().all() for tensor in after.values())
        assert same(after, results[0][0])


@pytest.mark.parametrize("name", ["topk:0.05", "randomk:0.05", "powersgd:2"])
def test_a_gradient_that_is_nothing_but_nan_is_forgotten_too(name: str) -> None:
    def live(group: Group) -> bool:
        ours = compressor(name)
        tensors = {key: t * torch.nan for key, t in gradients(0, 0).items()}
        ours.average(group, tensors)
        assert not any(tensor.isfinite().all() for tensor in tensors.values())
        after = gradients(group.rank, 1)
        ours.average(group, after)
        return all(bool(tensor.isfinite().all()) for tensor in after.values())

    assert all(run_world(2, live))


# -- bytes -----------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes that all ranks send, per call."""
    counts: list[int] = []
    try_send = SocketLink.try_send

    def note(self: SocketLink, view: memoryview) -> int:
        taken = try_send(self, view)
        counts.append(taken)
        return taken

    monkeypatch.setattr(SocketLink, "try_send", note)
    return counts


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("bf16", 1.99),
        ("int8", 3.9),
        ("onebit", 28.0),
        ("topk:0.01", 20),
        ("randomk:0.01", 90),
    ],
)
def test_fewer_bytes_travel(name: str, least: float, sent: list[int]) -> None:
    """Four ranks, a million values, counted at the links."""

    def bytes_of(scheme: str) -> int:
        sent.clear()

        def live(group: Group) -> None:
            ours = compressor(scheme)
            for step in range(2):
                generator = torch.Generator().manual_seed(group.rank + 10 * step)
                ours.average(group, {"w": torch.randn(1 << 20, generator=generator)})

        run_world(4, live)
        return sum(sent)

    assert bytes_of("none") / bytes_of(name) >= least


def test_powersgd_sends_forty_times_less_of_a_transformer(sent: list[int]) -> None:
    """Return gradients of a real model: matrices, biases, norms and an embedding."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(96, 256), nn.TransformerEncoderLayer(256, 4, 1024, 0.0)
    )
    model(torch.arange(40).view(2, 20)).square().mean().backward()
    real = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert sum(grad.numel() for grad in real.values()) > 800_000

    def bytes_of(scheme: str) -> int:
        sent.clear()

        def live(group: Group) -> None:
            compressor(scheme).average(group, {n: g.clone() for n, g in real.items()})

        run_world(4, live)
        return sum(sent)

    assert bytes_of("none") / bytes_of("powersgd:2") >= 40
