"""``ringleader.parallelize``: every strategy beside one process in float64.

The reference trains on the batches of all ranks as one. Batches differ in size between
ranks, no size divides by the number of ranks, and every rank starts elsewhere.
"""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor

import ringleader
from ringleader import checkpoint
from ringleader.backend.process_group import RingleaderGroup
from ringleader.errors import CallMismatch, ConfigError
from ringleader.parallel.options import Loss
from ringleader.parallel.trainer import Trainer
from tests.kit.reference import (
    FLOAT32,
    MakeOptimizer,
    adam,
    backward,
    check,
    check_state,
    net,
    sgd,
    tensor,
)
from tests.torch.scenario_checkpoint import folder_of_all

STEPS = 2
CLIP = 0.05
"""Below the norm of the gradients here, so that it matters."""


class Odd(nn.Module):
    """Blocks and a norm, with frozen, shared, tiny and scalar parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = net(8, 11, seed=1)
        self.blocks = nn.ModuleList(net(11, 13, 11, seed=10 * i) for i in (1, 2, 3))
        self.norm = nn.BatchNorm1d(11, dtype=torch.float64)
        first, second = net(11, 11, seed=50)[0], net(11, 11, seed=60)[0]
        second.weight = first.weight
        self.twins = nn.ModuleList([first, second])
        self.frozen = net(11, 11, seed=70).requires_grad_(False)
        self.tiny = nn.Parameter(tensor(1, seed=80))
        self.scalar = nn.Parameter(tensor(1, seed=81).squeeze())
        self.leave = net(11, 5, seed=90)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(torch.tanh(x))
        x = self.norm(x)
        for twin in self.twins:
            x = torch.tanh(twin(x))
        x = self.frozen(x) * self.tiny * self.scalar
        return cast(Tensor, self.leave(x))


class Words(nn.Module):
    """A small GPT; embedding and output layer may share a weight."""

    def __init__(
        self, vocabulary: int = 13, heads: int = 4, is_tied: bool = True
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 8, dtype=torch.float64)
        self.layers = nn.ModuleList([Layer(8, heads, seed=1)])
        self.norm = nn.LayerNorm(8, dtype=torch.float64)
        self.lm_head = nn.Linear(8, vocabulary, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.embed.weight.copy_(tensor(vocabulary, 8, seed=3))
            self.lm_head.weight.copy_(tensor(vocabulary, 8, seed=4))
        if is_tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.lm_head(self.norm(x)))


class Layer(nn.Module):
    """Attention and an MLP whose width is a prime."""

    def __init__(self, width: int, heads: int, seed: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, seed)
        self.fc1 = net(width, 17, seed=20 * seed)[0]
        self.fc2 = net(17, width, seed=20 * seed + 3)[0]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return cast(Tensor, x + self.fc2(F.gelu(self.fc1(x))))


class Attention(nn.Module):
    """Causal self-attention that knows the number of its heads."""

    def __init__(self, width: int, heads: int, seed: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            net(width, width, seed=100 * seed + 10 * i)[0] for i in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        def heads(layer: nn.Module) -> Tensor:
            split = layer(x).unflatten(-1, (self.num_heads, -1))
            return cast(Tensor, split.transpose(1, 2))

        query, key, value = map(heads, (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast(Tensor, self.out_proj(mixed.transpose(1, 2).flatten(2)))


def numbers(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Batches of 5, 7, 9, ... rows."""
    rows, seed = 5 + 2 * rank, 1000 + 50 * step + rank
    return tensor(rows, 8, seed=seed), tensor(rows, 5, seed=seed + 500_000)


def words(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    text = torch.randint(0, 13, (3 + 2 * rank, 7), generator=generator)
    return text[:, :-1], text[:, 1:]


def word_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


Data = Callable[[int, int], tuple[Tensor, Tensor]]


class Case:
    """A model with its data and its loss."""

    def __init__(self, make: Callable[[], nn.Module], data: Data, loss: Loss) -> None:
        self.make = make
        self.data = data
        self.loss = loss

    def alone(
        self,
        size: int,
        microbatches: int = 1,
        clip: float | None = None,
        optimizer: MakeOptimizer = sgd,
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """State and losses of one process with the batches of ``size`` ranks."""
        model = self.make()
        trained = [p for p in model.parameters() if p.requires_grad]
        updates = optimizer(trained)
        losses = []
        for step in range(STEPS):
            updates.zero_grad()
            batches = [self.data(rank, step) for rank in range(size)]
            total = torch.zeros((), dtype=torch.float64)
            rows = sum(len(x) for x, _ in batches)
            for i in range(microbatches):
                cut = [[t.tensor_split(microbatches)[i] for t in b] for b in batches]
                x, y = (torch.cat(parts) for parts in zip(*cut, strict=True))
                total = total + self.loss(model(x), y) * (len(x) / rows)
            backward(total)
            if clip is not None:
                nn.utils.clip_grad_norm_(trained, clip)
            updates.step()
            losses.append(total.detach())
        return dict(model.state_dict()), losses

    def trainer(self, rank: int, strategy: str, **options: Any) -> Trainer:  # noqa: ANN401
        """Train with the strategy; this rank starts from other values."""
        model = copy.deepcopy(self.make()).float()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(rank)
        options = {"optimizer": sgd, "loss": self.loss, **options}
        return ringleader.parallelize(model, strategy, **options)

    def check(
        self,
        rank: int,
        strategy: str,
        rel: float = FLOAT32,
        **options: Any,  # noqa: ANN401
    ) -> Trainer:
        """Losses and the state afterwards are those of one process."""
        trainer = self.trainer(rank, strategy, **options)
        known = ("microbatches", "clip", "optimizer")
        relevant = {name: options[name] for name in known if name in options}
        state, losses = self.alone(trainer.data_size, **relevant)
        for step, expected in enumerate(losses):
            loss = trainer.step(*self.given(trainer, step))
            check(loss, expected, rel=rel, what=f"{strategy}: loss of step {step}")
        check_state(whole(trainer.model), state, rel)
        assert trainer.steps == STEPS
        return trainer

    def given(self, trainer: Trainer, step: int) -> list[Tensor]:
        """The batch of a rank, in the type of the model."""
        batch = self.data(trainer.data_rank, step)
        return [t.float() if t.is_floating_point() else t for t in batch]


ODD = Case(Odd, numbers, F.mse_loss)
WORDS = Case(Words, words, word_loss)
UNTIED = Case(lambda: Words(is_tied=False), words, word_loss)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The state of the model, as one process would have it."""
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value.clone()
        for name, value in cast(Any, get_model_state_dict(model)).items()
    }


def parallel_ddp(rank: int, size: int) -> None:
    ODD.check(rank, "ddp")
    ODD.check(rank, "ddp", microbatches=3, clip=CLIP, optimizer=adam)


def parallel_fsdp(rank: int, size: int) -> None:
    """FT-14: sizes that no number of ranks divides, parameters of one element."""
    trainer = ODD.check(rank, "fsdp", microbatches=3, clip=CLIP, optimizer=adam)
    assert trainer.grad_norm is not None
    assert trainer.grad_norm > CLIP


def parallel_fsdp_of_gradients(rank: int, size: int) -> None:
    ODD.check(rank, "fsdp", shard="grad", microbatches=3)
    WORDS.check(rank, "fsdp", shard="grad", blocks=[Attention])


def parallel_fsdp_gathers_ahead(rank: int, size: int) -> None:
    """FT-4: several gathers of several parameters at a time, each gets its own."""
    for ahead in (0, 3):
        ODD.check(rank, "fsdp", prefetch=ahead)


def parallel_fsdp_hybrid(rank: int, size: int) -> None:
    """FT-7: groups without rank 0, in two dimensions and in any order."""
    hosts = [[2, 1], [3, 0]]
    trainer = ODD.check(
        rank, "fsdp", shard="hybrid", hosts=hosts, clip=CLIP, microbatches=2
    )
    weight = cast(DTensor, trainer.model.get_parameter("leave.0.weight"))
    assert weight.to_local().shape[0] < 5, "nothing was sharded"
    with pytest.raises(ConfigError, match="the hosts have 3, 1 ranks"):
        ODD.trainer(rank, "fsdp", shard="hybrid", hosts=[[0, 1, 2], [3]])


def parallel_tensor(rank: int, size: int) -> None:
    """FT-5: activations and gradients change their placement, and values follow."""
    trainer = WORDS.check(rank, "tensor", clip=CLIP)
    layer = cast(Layer, cast(Any, trainer.model).layers[0])
    assert cast(DTensor, layer.fc1.weight).to_local().shape[0] < 17
    weight = trainer.model.get_parameter("embed.weight")
    assert weight is trainer.model.get_parameter("lm_head.weight"), "one parameter"
    # Some parameters are whole, and on CUDA torch would update all in one operation.
    assert [each["foreach"] for each in trainer.optimizer.param_groups] == [False]
    UNTIED.check(rank, "tensor", clip=CLIP, microbatches=2)
    with pytest.raises(ConfigError, match="need the same batch"):
        trainer.step(*words(rank, 0))


class Dropping(nn.Module):
    """An MLP with a dropout that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = net(8, 17, seed=1)[0], net(17, 5, seed=2)[0]

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(F.dropout(self.fc1(x), training=self.training)))


def parallel_tensor_with_dropout(rank: int, size: int) -> None:
    """Ranks that share layers drop the same activations, whatever their seeds are."""
    model = nn.Sequential(*net(8, 12, 8), nn.Dropout(0.5), nn.LayerNorm(8), *net())
    torch.manual_seed(rank)
    trainer = ringleader.parallelize(
        model.float(), "tensor", optimizer=sgd, loss=F.mse_loss
    )
    for step in range(STEPS):
        trainer.step(*(t.float() for t in numbers(0, step)))
    for name, value in whole(trainer.model).items():
        rows = [torch.empty_like(value) for _ in range(size)]
        dist.all_gather(rows, value)
        assert all(torch.equal(row, value) for row in rows), name
    assert isinstance(trainer.model.get_parameter("0.weight"), DTensor)
    # Parts of unequal size need more random numbers on some ranks than on others.
    uneven = ringleader.parallelize(
        Dropping().float(), "tensor", optimizer=sgd, loss=F.mse_loss
    )
    with pytest.raises(ConfigError, match="drew different numbers of random values"):
        uneven.step(*(t.float() for t in numbers(0, 0)))
    # A run that goes on draws what it would have drawn.
    batch = [t.float() for t in numbers(0, 0)]

    def stuck() -> Trainer:
        """Without learning, losses of one batch differ by what is dropped."""
        torch.manual_seed(rank)
        made = nn.Sequential(*net(8, 12, 5, seed=3), nn.Dropout(0.5)).float()
        return ringleader.parallelize(
            made, "tensor", optimizer=lambda p: torch.optim.SGD(p, 0.0), loss=F.mse_loss
        )

    first = stuck()
    losses = [float(first.step(*batch)) for _ in range(2)]
    assert losses[0] != losses[1]
    second = stuck()
    second.load_state_dict({**first.state_dict(), "steps": 1})
    assert float(second.step(*batch)) == losses[1]


def parallel_two_dimensions(rank: int, size: int) -> None:
    plan = {"layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"}
    for strategy, given in (("fsdp+tensor", None), ("ddp+tensor", plan)):
        options: dict[str, Any] = {"tensor": 2, "plan": given, "microbatches": 2}
        trainer = WORDS.check(rank, strategy, clip=CLIP, **options)
        assert (trainer.data_rank, trainer.data_size) == (rank // 2, 2)
    hosts = [[0, 1], [2, 3]]
    with pytest.raises(ConfigError, match="no equal groups"):
        WORDS.trainer(rank, "fsdp+tensor", tensor=2, shard="hybrid", hosts=hosts)


def parallel_mixed_precision(rank: int, size: int) -> None:
    """Computed in 16 bits, near the float64 reference; the parameters stay float32."""
    for case, strategy, precision in (
        (ODD, "ddp", "bf16"),
        (ODD, "fsdp", "bf16"),
        (ODD, "fsdp", "fp16"),
        (WORDS, "tensor", "bf16"),
    ):
        seen: set[torch.dtype] = set()
        with outputs_of_linear_layers(seen):
            case.check(rank, strategy, rel=0.05, precision=precision, clip=CLIP)
        assert seen == {{"bf16": torch.bfloat16, "fp16": torch.float16}[precision]}


@contextmanager
def outputs_of_linear_layers(seen: set[torch.dtype]) -> Iterator[None]:
    def note(module: nn.Module, _: object, output: object) -> None:
        is_layer = isinstance(module, nn.Linear) and isinstance(output, Tensor)
        if is_layer and module.weight.dtype != torch.float64:
            seen.add(cast(Tensor, output).dtype)

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        yield
    finally:
        handle.remove()


def parallel_fp16_overflow(rank: int, size: int) -> None:
    """An overflow in the batch and the shard of one rank: all ranks skip the step, and
    the scale is halved."""

    def last_layer() -> nn.Module:
        model = Odd().requires_grad_(False)
        model.leave.requires_grad_(True)
        return model

    case = Case(last_layer, numbers, F.mse_loss)
    for strategy in ("ddp", "fsdp"):
        trainer = case.trainer(rank, strategy, precision="fp16")
        before = whole(trainer.model)
        x, y = case.given(trainer, 0)
        large = y.clone()
        large[:, -1] *= 1e6  # of the weight, only the last row overflows
        trainer.step(x, large if rank == size - 1 else y)
        check_state(skip_statistics(whole(trainer.model)), skip_statistics(before), 0)
        assert trainer.state_dict()["loss_scale"] == 32768.0
        trainer.step(x, y)


def skip_statistics(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if "norm." not in name}


def parallel_unusable_batch(rank: int, size: int) -> None:
    """What one rank cannot use is an error of all ranks, and the next step works."""
    case, odd = Case(Odd, numbers, F.mse_loss), size - 1
    for strategy in ("ddp", "fsdp"):
        trainer = case.trainer(rank, strategy)
        x, y = case.given(trainer, 0)
        wanted = "same first dim" if rank == odd else f"batch of rank {odd} cannot"
        with pytest.raises(ConfigError, match=wanted):
            trainer.step(x, y[1:] if rank == odd else y)
        with pytest.raises(ConfigError, match="batches of all ranks are empty"):
            trainer.step(x[:0], y[:0])
        trainer.step(x, y)


def parallel_failed_step(rank: int, size: int) -> None:
    """FSDP keeps gradients of a step that failed: no later step may add them."""
    calls = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return F.mse_loss(output, target)

    case = Case(Odd, numbers, loss)
    trainer = case.trainer(rank, "fsdp", microbatches=2)
    with pytest.raises(MemoryError):
        trainer.step(*case.given(trainer, 0))
    with pytest.raises(ConfigError, match="failed in the middle"):
        trainer.step(*case.given(trainer, 0))


class OwnLoss(nn.Module):
    """Returns its loss, as Hugging Face's models do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = self.net(inputs)
        return {"loss": F.mse_loss(output, labels), "logits": output}


def parallel_model_with_its_own_loss(rank: int, size: int) -> None:
    expected, losses = ODD.alone(size, microbatches=2)
    trainer = ringleader.parallelize(
        OwnLoss(Odd().float()), "fsdp", optimizer=sgd, microbatches=2
    )
    for step, wanted in enumerate(losses):
        inputs, labels = ODD.given(trainer, step)
        check(trainer.step(inputs, labels=labels), wanted)
    state = {n.removeprefix("net."): v for n, v in whole(trainer.model).items()}
    check_state(state, expected)


def parallel_empty_batch(rank: int, size: int) -> None:
    """At the end of an epoch a rank may have no row; its weight is 0."""
    case = Case(Odd, lambda r, s: numbers_without(r, s, size - 1), F.mse_loss)
    for strategy in ("ddp", "fsdp"):
        case.check(rank, strategy, microbatches=2)


def numbers_without(rank: int, step: int, odd: int) -> tuple[Tensor, Tensor]:
    x, y = numbers(rank, step)
    return (x[:0], y[:0]) if rank == odd else (x, y)


def parallel_batch_norm_far_from_zero(rank: int, size: int) -> None:
    """FT-10: mean 1e4, deviation 1, unequal batches."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        x, y = numbers(rank, step)
        return (x + 1e4).float().double(), y

    def make() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(8, dtype=torch.float64), *net())

    for strategy in ("ddp", "fsdp"):
        Case(make, data, F.mse_loss).check(rank, strategy, rel=1e-4)


def parallel_keeps_one_optimizer(rank: int, size: int) -> None:
    """FT-9: what the optimizer updates is what the model uses, before and after."""
    for strategy in ("ddp", "fsdp"):
        trainer = ODD.trainer(rank, strategy)
        for step in range(2):
            used = {id(p) for p in trainer.model.parameters() if p.requires_grad}
            groups = trainer.optimizer.param_groups
            assert {id(p) for group in groups for p in group["params"]} == used
            trainer.step(*ODD.given(trainer, step))
    model = ODD.make()
    optimizer = cast(Any, adam(model.parameters()))
    with pytest.raises(ConfigError, match="this optimizer would train the old"):
        ringleader.parallelize(model, "fsdp", optimizer=optimizer, loss=F.mse_loss)


def parallel_accumulation_communicates_once(rank: int, size: int) -> None:
    """Gradients are exchanged once a step, however many micro-batches it has; what
    stays whole is gathered once."""
    model = nn.Sequential(*net(8, 16, 16, 5))
    case = Case(lambda: copy.deepcopy(model), numbers, F.mse_loss)
    for strategy, options, expected in (
        ("ddp", {}, {"allreduce": 1}),
        (
            "fsdp",
            {"shard": "grad"},
            {"all_gather_single": 3, "reduce_scatter_single": 3},
        ),
        ("fsdp", {}, {"all_gather_single": 18, "reduce_scatter_single": 3}),
    ):
        trainer = case.trainer(rank, strategy, microbatches=3, **options)
        for step in (0, 1):  # DDP orders its buckets anew
            trainer.step(*case.given(trainer, step))
        with counted() as calls:
            trainer.step(*case.given(trainer, 2))
        assert calls.pop("allgather") == 2, "rows, loss"
        assert dict(calls) == expected, (strategy, options, calls)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the collectives of this process."""
    names = "allreduce allgather all_gather_single reduce_scatter_single broadcast"
    calls: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., object]:
        method = getattr(RingleaderGroup, name)

        def call(*args: object, **keywords: object) -> object:
            calls[name] += 1
            return method(*args, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names.split():
            patch.setattr(RingleaderGroup, name, counting(name))
        yield calls


def parallel_memory(rank: int, size: int) -> None:
    """FT-14: a rank holds its share of parameters and optimizer, and nothing else.

    With 4 ranks, at most 40 % of DDP's; here is also what is left after a step.
    """
    case = Case(lambda: net(64, *[101] * 4, 5), wide_numbers, F.mse_loss)
    whole_bytes = 3 * 4 * sum(p.numel() for p in case.make().parameters())  # and Adam
    kept = {}
    for strategy in ("ddp", "fsdp"):
        before = live_bytes()
        trainer = case.trainer(rank, strategy, optimizer=adam)
        for step in range(2):
            trainer.step(*case.given(trainer, step))
        trainer.optimizer.zero_grad()
        kept[strategy] = live_bytes() - before
        del trainer
    assert kept["ddp"] >= whole_bytes, kept
    assert kept["fsdp"] <= 0.40 * whole_bytes, (kept, whole_bytes)


def wide_numbers(rank: int, step: int) -> tuple[Tensor, Tensor]:
    return tensor(3, 64, seed=rank + 10 * step), tensor(3, 5, seed=rank)


def live_bytes() -> int:
    """The memory of all tensors of this process."""
    gc.collect()
    found: dict[int, int] = {}
    for each in gc.get_objects():
        if type(each) not in (Tensor, nn.Parameter, DTensor):  # fake ones have no bytes
            continue
        for held in (each, each.grad if each.is_leaf else None):
            local = held.to_local() if isinstance(held, DTensor) else held
            if local is not None and not local.is_meta:
                storage = local.untyped_storage()
                if num_bytes := storage.nbytes():  # what FSDP has freed has none
                    found[storage.data_ptr()] = num_bytes
    return sum(found.values())


def parallel_other_model_on_one_rank(rank: int, size: int) -> None:
    """All ranks raise the same error, which names the rank and the difference."""
    odd = size - 1
    cases: list[tuple[Callable[[], nn.Module], dict[str, Any], str]] = [
        (lambda: net(8, 12, 5), {}, r"'0.weight: \[12, 8\] float64' on rank"),
        (lambda: net(8, 11, 5).float(), {}, r"'0.weight: \[11, 8\] float32' on rank"),
        (frozen, {}, r"'0.weight: \[11, 8\] float64 frozen' on rank"),
        (lambda: net(8, 11, 5), {"clip": 2.0}, "'clip: 2.0' on rank"),
    ]
    for other, options, text in cases:
        model = other() if rank == odd else net(8, 11, 5)
        given = options if rank == odd else {}
        with pytest.raises(CallMismatch, match=f"^rank {odd}: .*{text} {odd} is '"):
            ringleader.parallelize(
                model, "ddp", optimizer=adam, loss=F.mse_loss, **given
            )


def frozen() -> nn.Module:
    model = net(8, 11, 5)
    return model.requires_grad_(False)


def parallel_checkpoint_from_fsdp_to_ddp(rank: int, size: int) -> None:
    """One step sharded, saved; the next replicated: as if nothing had happened."""
    expected, losses = ODD.alone(size, clip=CLIP)
    with folder_of_all(rank) as folder:
        first = ODD.trainer(rank, "fsdp", clip=CLIP)
        first.step(*ODD.given(first, 0))
        model, optimizer = first.model, first.optimizer
        checkpoint.save(folder, first.steps, model, optimizer, trainer=first)
        second = ODD.trainer(rank, "ddp", clip=CLIP)
        model, optimizer = second.model, second.optimizer
        assert checkpoint.load(folder, model, optimizer, trainer=second) is not None
        assert second.steps == 1
        check(second.step(*ODD.given(second, 1)), losses[1])
        check_state(whole(second.model), expected)
