"""The table of ``ringleader simulate --profile``: an all_reduce on 2 to 1,024 nodes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import typer

from ringleader.cli import units
from ringleader.cli.terminal import progress
from ringleader.errors import ConfigError
from ringleader.simulation.collectives.wire_profile import (
    LOCAL_STEPS,
    ScaleRow,
    WireProfile,
    find_profile,
    predict_row,
)

NODES = "2,4,8,16,32,64,128,256,512,1024"

MAX_NODES = 4096
"""Beyond this even the fast methods need gigabytes of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequest:
    """The parsed options."""

    name: str
    wire: WireProfile
    num_bytes: int
    nodes: list[int]
    step_s: float | None = None
    copy_bytes_per_s: float | None = None
    """Speed of one core; None: that of the cost model."""


def refuse_network(context: typer.Context) -> None:
    """Refuse options that describe a network beside a profile, which is one."""
    allowed = {"nodes", "size", "profile", "step_s", "copy_speed", "as_json"}
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--profile: {parameter.opts[0]} cannot be given with it")


def parse(
    profile: str, nodes: str, size: str, step_s: float, copy_speed: str
) -> ScaleRequest:
    """Parse the options; raises ConfigError with the one that is wrong."""
    try:
        wire = find_profile(profile)
    except ConfigError as error:
        raise ConfigError(f"--profile: {error}") from None
    counts = units.parse_counts(nodes or NODES, what="--nodes", most=MAX_NODES)
    if min(counts) < 2:
        raise ConfigError("--nodes: a profile needs at least 2 nodes")
    num_bytes = units.parse_size(size, what="--bytes")
    if num_bytes == 0 or not 0 <= step_s < math.inf:
        raise ConfigError("--bytes must be more than 0, --step-s 0 or more")
    copy = units.parse_rate(copy_speed, what="--copy-speed") if copy_speed else None
    return ScaleRequest(
        name=profile,
        wire=wire,
        num_bytes=num_bytes,
        nodes=counts,
        step_s=step_s or None,
        copy_bytes_per_s=copy,
    )


def rows(request: ScaleRequest) -> list[ScaleRow]:
    """Predict all rows."""
    found = []
    with progress("simulate", len(request.nodes)) as begin:
        for size in request.nodes:
            begin(f"{size:,} nodes")
            network = request.wire.network(size)
            if request.copy_bytes_per_s is not None:
                network = replace(network, copy_bandwidth=request.copy_bytes_per_s)
            row = predict_row(request.wire, request.num_bytes, network, request.step_s)
            found.append(row)
    return found


def show(request: ScaleRequest, *, as_json: bool) -> None:
    """Print the table, or all numbers as JSON."""
    found = rows(request)
    if as_json:
        asked = {**asdict(request), "wire": _plain(request.wire)}
        typer.echo(json.dumps({**asked, "results": [asdict(r) for r in found]}))
        return
    wire = request.wire
    typer.echo(
        f"all_reduce of {units.format_bytes(request.num_bytes)} over {wire.title}: "
        f"{units.format_rate(wire.bytes_per_s)} of payload, "
        f"{units.format_seconds(wire.latency_s)} one way; {wire.medium.value}"
    )
    typer.echo("\n" + "\n".join(table(found)))
    if request.step_s is not None:
        typer.echo(
            f"\nshares of a step of {units.format_seconds(request.step_s)} that nodes "
            f"compute, if nothing is sent meanwhile"
        )


def table(found: Sequence[ScaleRow]) -> list[str]:
    """Return the lines of a table in Markdown, with equal columns."""
    heads = ["nodes", "time", "algorithm", "of the wire", "int8"]
    if found[0].efficiency is not None:
        heads += ["computes", "with int8", f"int8 every {LOCAL_STEPS} steps"]
    cells = [heads, ["-" * len(head) + ":" for head in heads]]
    for row in found:
        shares = (row.efficiency, row.int8_efficiency, row.rounds_efficiency)
        cells.append(
            [
                f"{row.nodes:,}",
                units.format_seconds(row.time_s),
                row.algorithm,
                _percent(row.wire_share),
                units.format_seconds(row.int8_s),
                *(_percent(share) for share in shares if share is not None),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["| " + " | ".join(_padded(line, widths)) + " |" for line in cells]


def _padded(line: list[str], widths: list[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]


def _percent(share: float) -> str:
    """Format a share; a small one with a digit."""
    if share < 0.001:
        return "< 0.1%"
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _plain(wire: WireProfile) -> dict[str, object]:
    return {**asdict(wire), "medium": wire.medium.name.lower()}
