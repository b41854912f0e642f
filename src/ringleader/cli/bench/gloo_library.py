"""GlooLibrary: torch.distributed's CPU backend as a benchmark competitor."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Self

import torch
import torch.distributed as dist

from ringleader.cli.bench.bench_rank import Buffers
from ringleader.errors import ConfigError

TIMEOUT_S = 120.0
"""Limit for one call, far above the expected time: 256 MiB between 8 ranks on two cores
take seconds."""


class GlooLibrary:
    """The default process group of this process."""

    @classmethod
    def connect(cls, store_url: str, rank: int, size: int) -> Self:
        """Initialize the process group together with the other ranks."""
        dist.init_process_group(
            "gloo",
            init_method=store_url,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        return cls()

    def barrier(self) -> None:
        """Return once all ranks have called it."""
        dist.barrier()

    def prepare(
        self, operation: str, buffers: Buffers, algorithm: str | None
    ) -> Callable[[], object]:
        """See CollectiveLibrary."""
        if algorithm is not None:
            raise ConfigError("gloo chooses its algorithm itself")
        source, result = map(torch.from_numpy, buffers)
        match operation:
            case "all_reduce":
                return partial(dist.all_reduce, source)
            case "broadcast":
                return partial(dist.broadcast, source, 0)
            case "all_gather":
                return partial(dist.all_gather_into_tensor, result, source)
            case "reduce_scatter":
                return partial(dist.reduce_scatter_tensor, result, source)
            case _:
                return partial(dist.all_to_all_single, result, source)
