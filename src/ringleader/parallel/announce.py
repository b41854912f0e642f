"""Prints a plan before it runs; a dry run ends there."""

from __future__ import annotations

import torch.distributed as dist


def announce(plan: str, *, dry_run: bool) -> None:
    """Print the plan on rank 0; in a dry run, exit with status 0 on all ranks."""
    if dist.get_rank() == 0:
        print(plan, flush=True)  # noqa: T201 - the plan is for the user
    if not dry_run:
        return
    dist.barrier()
    if dist.get_rank() == 0:
        text = "ringleader: this was a dry run; nothing was trained"
        print(text, flush=True)  # noqa: T201
    dist.destroy_process_group()
    raise SystemExit(0)
