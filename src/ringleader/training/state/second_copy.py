"""Whether this machine has memory for a second copy of the state.

A member that takes over another one's state keeps its own until the other one is
complete and was compared: if the machine that sends it is lost, this may be the only
state that is left. Where two do not fit, the own one is overwritten, and what remains
after such a loss is the newest checkpoint.
"""

from __future__ import annotations

import torch

from ringleader.errors import ConfigError
from ringleader.parallel.measurement.machine_memory import usable_memory
from ringleader.training.state.replicated_state import ReplicatedState


def fits(state: ReplicatedState) -> bool:
    """Return whether a second copy of the state fits into the memory that is free.

    It is received into the memory of the host, also if the model is on a GPU.
    """
    num_bytes = state.num_bytes
    try:
        usable = usable_memory(torch.device("cpu"), num_bytes, 1)
    except ConfigError:  # the system does not tell
        return True
    return usable >= 2 * num_bytes


def warning(num_bytes: int, *, has_folder: bool) -> str:
    """Return what to tell on a machine without memory for a second copy."""
    text = (
        f"the state has {num_bytes / 2**20:.0f} MiB, and there is no memory for a "
        "second copy: if this machine takes over another one's state and loses it half "
        "way, it goes on from "
    )
    if has_folder:
        return f"{text}its newest checkpoint"
    return f"{text}nothing, for it has no checkpoints; start it with --checkpoint DIR"
