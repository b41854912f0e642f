"""``ringleader demo``: a real training run on this machine alone, in a minute."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ringleader.cli import units
from ringleader.cli.demo.demo_machine import pair
from ringleader.cli.interrupt import exit_on_sigterm
from ringleader.cli.json_socket import Message
from ringleader.cli.worker_pool import WorkerPool
from ringleader.errors import RingleaderError

_EPOCHS = 30
_START_S = 120.0
_SILENCE_S = 60.0
"""A run that reports nothing for so long is stuck; an epoch takes milliseconds."""

_MAX_RANKS = 32
_MIN_ACCURACY = 0.95
_MAX_DIFFERENCE = 1e-5
"""Sums in another order differ by some 1e-7 at the end; wrong gradients by far more."""

OnEpoch = Callable[[int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What happened, for people and for ``--json``."""

    ranks: int
    cluster: str
    """Its tag."""
    joined_s: float
    """Until the last machine had found the others and the group stood."""
    leader: str
    view_epoch: int
    ring: tuple[str, ...]
    epochs: int
    steps: int
    seconds: float
    transport: str
    parameters: int
    step_bytes: int
    loss: float
    accuracy: float
    test_digits: int
    digests: tuple[str, ...]
    largest_difference: float

    @property
    def is_identical(self) -> bool:
        """Whether every bit of the parameters is the same on all ranks."""
        return len(set(self.digests)) == 1

    def troubles(self) -> list[str]:
        """Every claim that does not hold; none in a good run."""
        found = []
        if not self.is_identical:
            found.append(f"ranks hold different parameters: sha256 {self.digests}")
        if not self.largest_difference <= _MAX_DIFFERENCE:  # also when it is NaN
            what = f"{self.largest_difference:.1e} from the single-process run"
            found.append(f"parameters differ by {what}, limit {_MAX_DIFFERENCE:g}")
        if self.epochs >= _EPOCHS and self.accuracy < _MIN_ACCURACY:
            found.append(f"accuracy {self.accuracy:.1%} is below {_MIN_ACCURACY:.0%}")
        return found

    def lines(self) -> list[str]:
        """The run in plain words."""
        speed = self.steps / self.seconds
        moved = units.format_bytes(self.steps * self.step_bytes)
        return [
            f"Paired {self.ranks} machines (all of them here): cluster {self.cluster}, "
            "one phrase, a key each.",
            f"Found each other by mDNS, proved who they are by TLS and formed a group "
            f"in {self.joined_s:.1f} s.",
            f"Elected {self.leader} as leader, epoch {self.view_epoch}; ring "
            f"{' -> '.join(self.ring)}.",
            f"Trained {self.steps} steps in {self.seconds:.2f} s ({speed:.0f} steps "
            f"per second), {self.ranks} ranks over {self.transport}.",
            f"Every step summed {self.parameters} gradients "
            f"({units.format_bytes(self.step_bytes)}) across the ranks: "
            f"{moved} per rank in all.",
            f"Accuracy on {self.test_digits} digits never seen in training: "
            f"{self.accuracy:.1%}.",
            f"Parameters bit-identical on all {self.ranks} ranks: "
            f"{'yes' if self.is_identical else 'NO'} (sha256 {self.digests[0][:16]}).",
            "Largest difference from a single-process run on the same batches: "
            f"{self.largest_difference:.1e} (limit {_MAX_DIFFERENCE:g}).",
        ]


def demo(
    ranks: Annotated[
        int, typer.Option(min=1, max=_MAX_RANKS, help="Processes to train with.")
    ] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = _EPOCHS,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on standard output.")
    ] = False,
) -> None:
    """Train a digit classifier with several processes here, and prove the result."""
    errors = Console(stderr=True)
    try:
        with exit_on_sigterm(), _progress(ranks, epochs) as on_epoch:
            story = tell(ranks, epochs, on_epoch)
    except RingleaderError as exc:
        errors.print(f"demo: {exc}", style="bold red", markup=False)
        raise typer.Exit(1) from exc
    if as_json:
        typer.echo(
            json.dumps({**asdict(story), "troubles": story.troubles()}, indent=1)
        )
    else:
        typer.echo("\n".join(story.lines()))
    for trouble in story.troubles():
        errors.print(f"demo: {trouble}", style="bold red", markup=False)
    if story.troubles():
        raise typer.Exit(1)


def tell(ranks: int, epochs: int, on_epoch: OnEpoch) -> DemoResult:
    """Start the ranks, train, compare with a run alone, and end every process."""
    with TemporaryDirectory() as folder, WorkerPool("demo", ranks) as pool:
        machines, tag = pair(ranks, Path(folder))
        for rank, machine in enumerate(machines):
            module = [sys.executable, "-m", "ringleader.cli.demo.worker"]
            argv = [*module, "--control", pool.address, "--rank", str(rank)]
            pool.start(argv, env=machine.environment())
        pool.wait_connected(_START_S)
        views, finals = _train(pool, epochs, on_epoch)
        compared = pool.request({"do": "compare"}, _SILENCE_S + epochs)
    first, view = finals[0], views[0]
    return DemoResult(
        ranks=ranks,
        cluster=tag,
        joined_s=max(float(str(each["joined_s"])) for each in views),
        leader=str(view["leader"]),
        view_epoch=int(str(view["epoch_of_view"])),
        ring=tuple(str(name) for name in _list(view["ring"])),
        epochs=epochs,
        steps=int(str(first["steps"])),
        seconds=max(float(str(final["seconds"])) for final in finals),
        transport=str(first["transport"]),
        parameters=int(str(first["parameters"])),
        step_bytes=int(str(first["step_bytes"])),
        loss=float(str(first["loss"])),
        accuracy=min(float(str(final["accuracy"])) for final in finals),
        test_digits=int(str(first["test_digits"])),
        digests=tuple(str(final["digest"]) for final in finals),
        largest_difference=max(float(str(a["largest_difference"])) for a in compared),
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _train(
    pool: WorkerPool, epochs: int, on_epoch: OnEpoch
) -> tuple[list[Message], list[Message]]:
    """What each machine saw of the cluster, and what it had at the end."""
    pool.send_all({"do": "train", "nodes": pool.size, "epochs": epochs})
    views: list[Message] = []
    finals: dict[int, Message] = {}
    for rank, message in pool.receive(_SILENCE_S):
        match message:
            case {"epoch": int(epoch), "loss": float(loss)}:
                on_epoch(epoch, loss)
            case {"joined_s": float()}:
                views.append(message)
            case _:
                finals[rank] = message
        if len(finals) == pool.size:
            break
    return views, [finals[rank] for rank in range(pool.size)]


@contextmanager
def _progress(ranks: int, epochs: int) -> Iterator[OnEpoch]:
    """A bar on stderr; where that is a file or a pipe, a line now and then."""
    console = Console(stderr=True)
    title = f"Training a digit classifier with {ranks} nodes on this machine"
    console.print(f"{title} ...", highlight=False)
    every = max(1, epochs // 10)
    columns = (
        BarColumn(),
        TextColumn("epoch {task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting processes", total=epochs)

        def on_epoch(epoch: int, loss: float) -> None:
            bar.update(task, completed=epoch, description=f"loss {loss:.4f}")
            if not console.is_terminal and (epoch == 1 or epoch % every == 0):
                line = f"epoch {epoch}/{epochs}: loss {loss:.4f}"
                console.print(line, highlight=False)

        yield on_epoch
