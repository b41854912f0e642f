"""Lets Accelerate shard CPU models: it ignores its FSDP plug-in unless it finds a GPU.

All of its own sharding code then runs, and two CPU ranks are enough to test it.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

_init: Any = AcceleratorState.__init__


@wraps(_init)
def _sharded(
    self: Any,
    *args: Any,
    fsdp_plugin: Any = None,
    **named: Any,
) -> None:
    _init(self, *args, fsdp_plugin=fsdp_plugin, **named)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin


AcceleratorState.__init__ = _sharded
