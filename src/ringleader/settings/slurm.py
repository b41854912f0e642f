"""What Slurm says about a job step in the environment: its nodes, and where to meet."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from ringleader.errors import ConfigError
from ringleader.settings.numbers import SHOWN, number

MAX_NODES = 1 << 16
"""Nodes that a list may expand to: those of the largest clusters, and bounded."""

FIRST_PORT, NUM_PORTS = 20_001, 12_007
"""Ports of stores: below those that systems give out, a prime number of them."""
STEPS = 61
"""Distance of the ports of two successive jobs, so that steps of one job fit between
those of the next."""

_ITEM = re.compile(r"(?:[^\[\],]+|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def expand_nodes(text: str, limit: int = MAX_NODES) -> list[str]:
    """Return the names in a node list as ``a,rack[1-2]n[01-03,7]``, in its order.

    Raises ConfigError for text that is no node list, and for more than ``limit`` names.
    """
    names: list[str] = []
    position = 0
    while True:
        item = _ITEM.match(text, position)
        if item is None:
            raise _wrong(text)
        names += itertools.islice(_expand(item[0], text), limit + 1 - len(names))
        if len(names) > limit:
            raise ConfigError(f"Slurm's node list has more than {limit} nodes")
        position = item.end()
        if position == len(text):
            return names
        if text[position] != ",":
            raise _wrong(text)
        position += 1


def _expand(item: str, text: str) -> Iterator[str]:
    """Return every combination of the parts of one item, the last one fastest."""
    parts: list[list[str]] = []
    count = 1
    for part in _PART.finditer(item):
        is_range = part[1] is not None
        parts.append(_numbers(part[1], text) if is_range else _literal(part[2], text))
        count *= len(parts[-1])
        if count > MAX_NODES:
            raise ConfigError(f"Slurm's node list has more than {MAX_NODES} nodes")
    return ("".join(choice) for choice in itertools.product(*parts))


def _literal(name: str, text: str) -> list[str]:
    if not _NAME.fullmatch(name):
        raise _wrong(text)
    return [name]


def _numbers(inside: str, text: str) -> list[str]:
    """Return the numbers in ``01-03,7``, padded as their first one is."""
    found: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _wrong(text)
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1:
            raise _wrong(text)
        if len(found) + count > MAX_NODES:
            raise ConfigError(f"Slurm's node list has more than {MAX_NODES} nodes")
        found += [
            str(value).zfill(len(first)) for value in range(int(first), int(last) + 1)
        ]
    return found


def _wrong(text: str) -> ConfigError:
    return ConfigError(f"Slurm's node list is {text[:SHOWN]!r}, not like n[01-03],m7")


def is_step(env: Mapping[str, str]) -> bool:
    """Return whether srun started this process, without MPI's own launcher."""
    return "SLURM_PROCID" in env and "SLURM_STEP_ID" in env


def is_batch_script(env: Mapping[str, str]) -> bool:
    """Return whether this process belongs to the script of a job, not to a step."""
    return "SLURM_PROCID" in env and "SLURM_STEP_ID" not in env


def master(env: Mapping[str, str]) -> str:
    """Return the address of the node with task 0; empty if Slurm does not name it.

    It is the first one of the step. A batch script runs on the first node of its job,
    and tells the address from which it has launched the step; from elsewhere, a login
    node for example, that address would be a wrong one.
    """
    job = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", "")
    step = env.get("SLURM_STEP_NODELIST") or job
    if not step:
        return ""
    nodes = expand_nodes(step)
    if len(nodes) == 1:
        return "127.0.0.1"
    address = env.get("SLURM_LAUNCH_NODE_IPADDR", "")
    is_batch = env.get("ENVIRONMENT") == "BATCH"
    if is_batch and address and job and expand_nodes(job)[0] == nodes[0]:
        return address
    return nodes[0]


def port(env: Mapping[str, str]) -> int | None:
    """Return a port that differs between jobs that run at a time, and their steps."""
    if "SLURM_JOB_ID" not in env:
        return None
    step = number(env, "SLURM_STEP_ID") if "SLURM_STEP_ID" in env else 0
    return FIRST_PORT + (STEPS * number(env, "SLURM_JOB_ID") + step) % NUM_PORTS
