"""What ``ringleader run --survive`` promises for a program, in plain words."""

from __future__ import annotations

import ast
import socket

from ringleader.errors import ConfigError
from ringleader.node.launch.local_modules import LocalSources

ELASTIC = [
    "--survive: this program uses ringleader.elastic. When machines are lost, the "
    "step completes without them and no sample is lost or counted twice; the same "
    "command on another machine joins the run; a killed worker starts again and joins.",
]
DDP = [
    "--survive: when a machine is lost, a DistributedDataParallel program goes on: the "
    "step completes among the others. Limits:",
    "  rank and world size stay as they were; the gradient is the mean of the machines "
    "that are left; the data of a lost rank is not visited;",
    "  what the program does on rank 0 only (checkpoints, logs) ends with rank 0, but "
    "for what Trainer saves; reduce_scatter raises, so FSDP does not survive;",
    "  a network that is cut leaves two models, one on each side; --partition majority "
    "lets only the larger side go on;",
    "  no machine can join or come back. ringleader.elastic has none of these limits.",
]


def check_survival(*, survive: bool, nproc_per_node: int) -> None:
    """Raise ``ConfigError`` if ``--survive`` was given and cannot work here."""
    if not survive:
        return
    if nproc_per_node != 1:
        text = "--survive runs one worker per machine; leave out --nproc-per-node"
        raise ConfigError(f"{text} {nproc_per_node}")
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("--survive needs Unix sockets, which this system lacks")


def check_partition(name: str, sources: LocalSources, *, survive: bool) -> None:
    """Raise ``ConfigError`` if ``--partition`` cannot be what the user wants."""
    if name not in ("continue", "majority"):
        raise ConfigError(f"--partition {name}: use continue or majority")
    if name == "majority" and not survive:
        raise ConfigError("--partition majority is for --survive")
    if name == "majority" and uses_elastic(sources):
        text = "ringleader.elastic has its own: elastic(..., partition='majority')"
        raise ConfigError(f"--partition majority: {text}")


def survival_notice(sources: LocalSources) -> list[str]:
    """Return what survives, and the limits that hold for the program."""
    return ELASTIC if uses_elastic(sources) else DDP


def uses_elastic(sources: LocalSources) -> bool:
    """Return whether the program, or a module beside it, uses ringleader.elastic."""
    return any(_is_elastic(node) for tree in sources.trees for node in ast.walk(tree))


def _is_elastic(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="ringleader"), attr="elastic"):
            return True
        case ast.ImportFrom(module="ringleader" | "ringleader.training.elastic"):
            return any(each.name == "elastic" for each in node.names)
    return False
