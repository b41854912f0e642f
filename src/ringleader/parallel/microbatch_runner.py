"""Runs micro-batches one after the other, and synchronizes with the last one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ringleader.errors import ConfigError
from ringleader.parallel.batch import Batch
from ringleader.parallel.batch_shares import (
    PendingSum,
    agree_on_shares,
    sum_over_data,
)
from ringleader.parallel.exchange_device import exchange_device
from ringleader.parallel.grid import Grid
from ringleader.parallel.options import Options

Synchronize = Callable[[bool], AbstractContextManager[None]]
"""Called before each micro-batch: True for the last one, which exchanges gradients."""


class MicrobatchRunner:
    """The runner of ``ddp``, ``fsdp`` and ``tensor``; see ``Runner``."""

    norm_groups: Sequence[dist.ProcessGroup] = ()

    def __init__(
        self,
        model: nn.Module,
        synchronize: Synchronize,
        *,
        options: Options,
        grid: Grid,
        autocast: torch.dtype | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self.model = model
        self._loss = options.loss
        self._microbatches = options.microbatches or 1
        self._grid = grid
        self._synchronize = synchronize
        self._autocast = autocast
        self._finish = finish

    @property
    def norm_parameters(self) -> Sequence[nn.Parameter]:
        """See ``Runner``."""
        return list(self.model.parameters())

    @torch.no_grad()
    def predict(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:  # noqa: ANN401  # whatever a model returns
        """See ``Runner.predict``."""
        with self._precision(device_of(self.model).type):
            return self.model(*inputs, **keywords)

    def run(self, batch: Batch, scale: float, step: int) -> Tensor:
        """See ``Runner.run``."""
        kind = device_of(self.model).type
        device = exchange_device(kind, dist.get_backend_config())
        shares = agree_on_shares(self._grid, batch, step, device)
        parts = batch.split(self._microbatches)
        mean = torch.zeros((), device=device)
        pending: PendingSum | None = None
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            with self._synchronize(is_last):
                with self._precision(kind), self._random(shares.seed + number):
                    loss = self._loss_of(part)
                    mark = random_mark(kind) if self._grid.tensor > 1 else 0.0
                weight = part.rows() / shares.mean_rows
                mean = mean + loss.detach().to(device, torch.float32) * weight
                if is_last:  # the losses travel while backward computes
                    pending = sum_over_data(self._grid, mean, mark)
                (loss * (weight * scale)).backward()  # type: ignore[no-untyped-call]
        if self._finish is not None:
            self._finish()
        assert pending is not None
        return pending.wait() / self._grid.data

    def _loss_of(self, part: Batch) -> Tensor:
        output = self.model(*part.inputs, **part.keywords)
        if part.rows() == 0:  # a mean over nothing is NaN, and this rank must go on
            return no_loss(output)
        if self._loss is not None:
            return scalar(self._loss(output, part.target))
        return scalar(loss_in(output))

    def _precision(self, kind: str) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(kind, self._autocast)

    @contextmanager
    def _random(self, seed: int) -> Iterator[None]:
        """Draw the same random numbers on all ranks that share layers."""
        if self._grid.tensor == 1:
            yield
            return
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield


def random_mark(kind: str) -> float:
    """Return a number below 2^24 that tells how many random values were drawn."""
    states = [torch.get_rng_state()]
    if kind == "cuda":
        states.append(torch.cuda.get_rng_state())
    digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in states))
    return float(int.from_bytes(digest.digest()[:3]))


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters."""
    for parameter in model.parameters():
        return parameter.device
    raise ConfigError("parallelize: the model has no parameters")


def loss_in(output: Any) -> Any:  # noqa: ANN401  # whatever a model returns
    """Return the loss that a model computed itself, as Hugging Face's models do."""
    if isinstance(output, dict) and "loss" in output:
        return output["loss"]
    return getattr(output, "loss", output)


def no_loss(output: Any) -> Tensor:  # noqa: ANN401  # whatever a model returns
    """Return 0 as a function of the output, so that backward passes through."""
    terms = [
        leaf.nan_to_num().sum() * 0
        for leaf in tree_leaves(output)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    return sum(terms, torch.zeros((), device="cpu"))


def scalar(loss: Any) -> Tensor:  # noqa: ANN401  # checked here
    """Return the loss, or raise ConfigError if it is no number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"step: the loss must be one number, the mean over the rows; got {what}. "
            "Give parallelize(loss=...), or a model that returns its loss"
        )
    return loss.reshape(())
