"""``ringleader simulate``: predicts the time of collectives on a described network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ringleader.cli import scale_table, units
from ringleader.cli.terminal import print_tables, progress
from ringleader.errors import ConfigError
from ringleader.simulation.collectives.wire_profile import (
    PAYLOAD_SHARE,
    PROFILES,
)

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.simulation.collectives import network_model


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """The parsed options; rates are in payload bytes per second."""

    operation: str
    num_bytes: int
    nodes: list[int]
    algorithms: list[str]
    latency_s: float
    bytes_per_s: float
    reduce_bytes_per_s: float
    arity: int
    slow_bytes_per_s: float | None
    num_islands: int | None
    island_bytes_per_s: float
    island_latency_s: float


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """One cell of the table: a time, or the reason why it is missing."""

    nodes: int
    algorithm: str
    time_s: float | None = None
    bytes_sent_most: int | None = None
    skipped: str | None = None
    is_best: bool = False


def simulate(  # noqa: PLR0913 (typer makes one option of each argument)
    context: typer.Context,
    nodes: Annotated[
        str,
        typer.Option(help="Numbers of nodes, as in 2,8,64; that is the default."),
    ] = "",
    size: Annotated[
        str, typer.Option("--bytes", help="Tensor size, as in 25M.")
    ] = "25M",
    latency: Annotated[
        str, typer.Option(help="One-way latency, as in 0.5ms.")
    ] = "0.5ms",
    bandwidth: Annotated[
        str, typer.Option(help="Line rate of links and NICs, as in 1gbit or 125MB/s.")
    ] = "1gbit",
    operation: Annotated[
        str, typer.Option(help="Collective to simulate.")
    ] = "all_reduce",
    algorithm_names: Annotated[
        str,
        typer.Option("--algorithms", help="Algorithms, as in ring,tree. Default: all."),
    ] = "",
    slow_link: Annotated[
        str, typer.Option(help="Line rate of the link between ranks 0 and 1.")
    ] = "",
    islands: Annotated[
        int, typer.Option(help="Divide the nodes into this many islands; 0: one LAN.")
    ] = 0,
    island_bandwidth: Annotated[
        str, typer.Option(help="Line rate of the link between two islands.")
    ] = "100mbit",
    island_latency: Annotated[
        str, typer.Option(help="One-way latency between islands.")
    ] = "10ms",
    reduce_speed: Annotated[
        str, typer.Option(help="Speed at which a node adds tensors.")
    ] = "3GB/s",
    arity: Annotated[int, typer.Option(help="Children per node in a tree.")] = 2,
    profile: Annotated[
        str,
        typer.Option(
            help=f"A known network instead, on 2 to 1,024 nodes: {', '.join(PROFILES)}."
        ),
    ] = "",
    step_s: Annotated[
        float,
        typer.Option(help="With --profile: seconds that a node computes per step."),
    ] = 0.0,
    copy_speed: Annotated[
        str,
        typer.Option(help="With --profile: speed of one core into or out of a link."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict how long a collective takes by simulating it in virtual time."""
    try:
        if profile:
            scale_table.refuse_network(context)
            asked = scale_table.parse(profile, nodes, size, step_s, copy_speed)
            scale_table.show(asked, as_json=as_json)
            return
        if step_s or copy_speed:
            raise ConfigError("--step-s and --copy-speed need --profile")
        request = PredictionRequest(
            operation=_known_operation(operation),
            num_bytes=units.parse_size(size, what="--bytes"),
            nodes=units.parse_counts(
                nodes or "2,8,64", what="--nodes", most=scale_table.MAX_NODES
            ),
            algorithms=_known_algorithms(operation, algorithm_names),
            latency_s=units.parse_seconds(latency, what="--latency"),
            bytes_per_s=_payload_rate(bandwidth, "--bandwidth"),
            reduce_bytes_per_s=units.parse_rate(reduce_speed, what="--reduce-speed"),
            arity=arity,
            slow_bytes_per_s=_payload_rate(slow_link, "--slow-link")
            if slow_link
            else None,
            num_islands=islands or None,
            island_bytes_per_s=_payload_rate(island_bandwidth, "--island-bandwidth"),
            island_latency_s=units.parse_seconds(
                island_latency, what="--island-latency"
            ),
        )
        _check(request)
        predictions = predict_all(request)
    except ConfigError as error:
        typer.echo(f"ringleader simulate: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(
            json.dumps({**asdict(request), "results": _plain(predictions)}, indent=2)
        )
    else:
        print_table(request, predictions)


def predict_all(request: PredictionRequest) -> list[PredictedTime]:
    """Predict all cells of the table and mark the fastest of each node count."""
    predictions: list[PredictedTime] = []
    total = len(request.nodes) * len(request.algorithms)
    with progress("simulate", total) as begin:
        for count in request.nodes:
            column = []
            for name in request.algorithms:
                begin(f"{name} on {count} nodes")
                column.append(_predict(request, count, name))
            predictions += _mark_best(column)
    return predictions


def print_table(request: PredictionRequest, predictions: list[PredictedTime]) -> None:
    """Print algorithms by node counts, and why cells are missing."""
    table = Table(caption="predicted; * fastest to 1 %")
    table.add_column("algorithm")
    for count in request.nodes:
        table.add_column(f"{count} nodes" if count != 1 else "1 node", justify="right")
    cells = {(a.algorithm, a.nodes): _cell(a) for a in predictions}
    for name in request.algorithms:
        table.add_row(name, *(cells[name, count] for count in request.nodes))
    console = Console()
    console.print(
        f"{request.operation} of {units.format_bytes(request.num_bytes)} over links "
        f"of {units.format_rate(request.bytes_per_s / PAYLOAD_SHARE)} and "
        f"{units.format_seconds(request.latency_s)}",
        highlight=False,
    )
    print_tables(table)
    for reason in dict.fromkeys(a.skipped for a in predictions if a.skipped):
        console.print(f"- {reason}", style="dim", highlight=False)


def _known_operation(operation: str) -> str:
    from ringleader.collectives.algorithm import OPERATIONS

    if operation not in OPERATIONS:
        raise ConfigError(
            f"--operation: unknown {operation!r}; use one of {', '.join(OPERATIONS)}"
        )
    return operation


def _known_algorithms(operation: str, names: str) -> list[str]:
    from ringleader.collectives.algorithm import algorithms

    known = algorithms(_known_operation(operation))
    if not names.strip():
        return list(known)
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ConfigError(
            f"--algorithms: {operation} has no {unknown[0]!r}; use {', '.join(known)}"
        )
    return list(dict.fromkeys(wanted))


def _payload_rate(text: str, what: str) -> float:
    return units.parse_rate(text, what=what) * PAYLOAD_SHARE


def _check(request: PredictionRequest) -> None:
    """Reject options that are invalid for one of the node counts."""
    if request.arity < 2:
        raise ConfigError(f"--arity: must be 2 or more, got {request.arity}")
    fewest = min(request.nodes)
    if request.slow_bytes_per_s is not None and fewest < 2:
        raise ConfigError("--slow-link: needs at least 2 nodes; remove 1 from --nodes")
    if request.num_islands is not None and not 1 <= request.num_islands <= fewest:
        raise ConfigError(
            f"--islands: must be between 1 and the fewest nodes ({fewest}), "
            f"got {request.num_islands}"
        )


def _network(request: PredictionRequest, size: int) -> network_model.NetworkModel:
    from ringleader.simulation.collectives import network_model

    network = network_model.NetworkModel.uniform(
        size,
        latency_s=request.latency_s,
        bytes_per_s=request.bytes_per_s,
        reduce_bytes_per_s=request.reduce_bytes_per_s,
    )
    if request.slow_bytes_per_s is not None:
        slow = network_model.LinkModel(request.latency_s, request.slow_bytes_per_s)
        network = network_model.one_slow_link(network, slow)
    if request.num_islands is not None:
        trunk = network_model.LinkModel(
            request.island_latency_s, request.island_bytes_per_s
        )
        network = network_model.islands(network, request.num_islands, trunk)
    return network


def _predict(request: PredictionRequest, size: int, algorithm: str) -> PredictedTime:
    from ringleader.simulation.collectives import simulator

    reason = simulator.skip_reason(algorithm, size)
    if reason is not None:
        return PredictedTime(size, algorithm, skipped=reason)
    network = _network(request, size)
    try:
        result = simulator.predict(
            request.operation,
            algorithm,
            request.num_bytes,
            network,
            arity=request.arity,
        )
    except ConfigError as error:  # too many messages; the options were checked before
        return PredictedTime(size, algorithm, skipped=str(error))
    return PredictedTime(size, algorithm, result.time_s, max(result.bytes_sent))


def _mark_best(column: Sequence[PredictedTime]) -> list[PredictedTime]:
    times = [a.time_s for a in column if a.time_s is not None]
    if len(times) < 2 or max(times) == 0:
        return list(column)
    limit = 1.01 * min(times)  # smaller differences are below the accuracy of the model
    return [
        PredictedTime(a.nodes, a.algorithm, a.time_s, a.bytes_sent_most, is_best=True)
        if a.time_s is not None and a.time_s <= limit
        else a
        for a in column
    ]


def _cell(prediction: PredictedTime) -> str:
    if prediction.time_s is None:
        return "-"
    text = units.format_seconds(prediction.time_s)
    return f"[bold green]{text} *[/]" if prediction.is_best else text


def _plain(predictions: Sequence[PredictedTime]) -> list[dict[str, object]]:
    return [asdict(prediction) for prediction in predictions]
