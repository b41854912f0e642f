"""SyncBatchNorm: batch normalization over all ranks, on any device and backend.

A layer of C channels takes one all_gather of 3C + 1 numbers forward and one all_reduce
of 2C numbers backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from ringleader.errors import ConfigError
from ringleader.parallel.exchange_device import exchange_device
from ringleader.parallel.moments import (
    Moments,
    measure,
    merge,
    per_channel,
    sum_channels,
)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm1d, 2d and 3d in one, with the statistics of all ranks' batches.

    Takes [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W]. State dicts are those of
    torch.nn.BatchNorm*d. Batches may differ in size between ranks; a rank with an empty
    batch must still call forward and backward, because the other ranks wait for it. The
    gradients of weight and bias are this rank's own: DistributedDataParallel averages
    them. Sums are in float32, or in float64 for float64 inputs.

    In evaluation, with a process group of one rank, or before torch.distributed is
    initialized, it is plain batch normalization without communication. If all ranks
    together have only one value per channel, every rank raises ConfigError.

    ``process_group=None`` means the default group at the time of the call.
    """

    def __init__(  # noqa: PLR0913 - the signature of torch.nn.SyncBatchNorm
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype
        )
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name for it
        """Normalize ``input``. In training every rank of the group must call it."""
        group = _group_of_several(self.process_group) if self.training else None
        if group is None:
            return super().forward(input)
        self._check_input_dim(input)
        with torch.no_grad():
            whole = merge(_gather(measure(input).pack(), group))
            count = float(whole.count)
            if count == 1:
                text = "expected more than 1 value per channel when training"
                raise ConfigError(f"batch norm: {text}, got 1 on all ranks together")
            if count > 1:
                self._track(whole)
            inverse_std = (whole.variance() + self.eps).rsqrt()
        batch = _Batch(whole, inverse_std, group)
        result: Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, batch
        )
        return result

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_group: dist.ProcessGroup | None = None
    ) -> nn.Module:
        """Replace every batch norm in ``module`` by a SyncBatchNorm; return ``module``.

        Parameters and buffers stay the same objects, so existing optimizers still
        update them. A module used in several places stays one module. Subclasses with
        their own forward are not replaced, because what it computes is unknown.
        """
        if _is_batch_norm(module):
            return cls._from(module, process_group)
        converted: dict[nn.Module, nn.Module] = {}
        for parent in list(module.modules()):
            # named_children() would skip the second use of a module.
            for name, child in list(parent._modules.items()):
                if child is not None and _is_batch_norm(child):
                    if child not in converted:
                        converted[child] = cls._from(child, process_group)
                    parent.register_module(name, converted[child])
        return module

    @classmethod
    def _from(
        cls, old: _BatchNorm, process_group: dist.ProcessGroup | None
    ) -> nn.Module:
        if isinstance(old, LazyModuleMixin):
            text = "run one batch through the model before converting it"
            raise ConfigError(f"{type(old).__name__} has no channels yet: {text}")
        new = cls(
            old.num_features,
            old.eps,
            old.momentum,
            old.affine,
            old.track_running_stats,
            process_group,
            device="meta",  # its tensors are replaced at once
        )
        new.weight, new.bias = old.weight, old.bias
        new.running_mean, new.running_var = old.running_mean, old.running_var
        new.num_batches_tracked = old.num_batches_tracked
        new.training = old.training
        return new

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - torch's name
        if not 2 <= input.ndim <= 5 or input.shape[1] != self.num_features:
            want = f"2 to 5 dimensions and {self.num_features} channels"
            raise ConfigError(f"batch norm: need {want}, got {list(input.shape)}")

    def _track(self, whole: Moments) -> None:
        """Update the running statistics."""
        if not self.track_running_stats or self.running_mean is None:
            return
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:  # the average of all batches so far
            factor = 1.0 / float(self.num_batches_tracked)
        _update_running(self.running_mean, whole.mean(), factor)
        _update_running(self.running_var, whole.variance(correction=1), factor)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The statistics of the batch of all ranks, and their group."""

    moments: Moments
    inverse_std: Tensor
    group: dist.ProcessGroup


class _Normalize(torch.autograd.Function):
    """Normalizes a batch; the gradient includes that of the statistics."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context takes any attribute
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        batch: _Batch,
    ) -> Tensor:
        ctx.save_for_backward(values, weight, bias)
        ctx.batch = batch
        result = batch.moments.deviations(values)
        result.mul_(per_channel(_scale(batch, weight), result))
        if bias is not None:
            result.add_(per_channel(bias, result))
        return result.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401 - torch's context takes any attribute
        upstream: Tensor,
    ) -> tuple[Tensor | None, ...]:
        values, weight, bias = ctx.saved_tensors
        batch: _Batch = ctx.batch
        deviations = batch.moments.deviations(values)
        upstream = upstream.to(deviations.dtype)
        sums = torch.stack(
            (sum_channels(upstream), sum_channels(upstream * deviations))
        )
        of_values, of_weight, of_bias = None, None, None
        if ctx.needs_input_grad[0]:
            means = _sum_ranks(sums, batch.group) / batch.moments.count.clamp(min=1)
            slope = means[1] * batch.inverse_std.square()
            centred = upstream - per_channel(means[0], upstream)
            centred.sub_(deviations.mul_(per_channel(slope, deviations)))
            centred.mul_(per_channel(_scale(batch, weight), centred))
            of_values = centred.to(values.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = (sums[1] * batch.inverse_std).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = sums[0].to(bias.dtype)
        return of_values, of_weight, of_bias, None


def _scale(batch: _Batch, weight: Tensor | None) -> Tensor:
    """Return the factor of the deviations, per channel."""
    return batch.inverse_std if weight is None else batch.inverse_std * weight


def _update_running(running: Tensor, new: Tensor, factor: float) -> None:
    """Update a running statistic, in the precision of ``new``."""
    running.copy_(torch.lerp(running.to(new.dtype), new, factor))


def _is_batch_norm(module: nn.Module) -> TypeGuard[_BatchNorm]:
    """Return whether a SyncBatchNorm can replace ``module``."""
    known = (_BatchNorm.forward, nn.SyncBatchNorm.forward, SyncBatchNorm.forward)
    return isinstance(module, _BatchNorm) and type(module).forward in known


# -- communication ------------------------------------------------------------------


def _group_of_several(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """Return the group to communicate with, or None if this rank is alone."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    size = dist.get_world_size(group)
    if size < 1:
        raise ConfigError("batch norm: this rank is not in the layer's process group")
    return (group or dist.group.WORLD) if size > 1 else None


def _gather(row: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the rows of all ranks: [size, len(row)]."""
    ours = row.to(exchange_device(row.device.type, dist.get_backend_config(group)))
    rows = ours.new_empty(dist.get_world_size(group), row.numel())
    dist.all_gather(list(rows.unbind()), ours, group=group)
    return rows.to(row.device)


def _sum_ranks(sums: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over all ranks as a new tensor."""
    device = exchange_device(sums.device.type, dist.get_backend_config(group))
    total = sums.to(device, copy=True)
    dist.all_reduce(total, group=group)
    return total.to(sums.device)
