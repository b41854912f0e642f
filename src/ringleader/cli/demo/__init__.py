"""``ringleader demo``: trains with several nodes on this machine, in a minute."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ringleader.cli import units
from ringleader.cli.interrupt import exit_on_sigterm
from ringleader.cli.json_socket import Message
from ringleader.errors import RingleaderError

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.cli.worker_pool import WorkerPool

_EPOCHS = 30
_START_S = 600.0
"""Against hangs only: a worker that ends while it starts is noticed at once."""
_SILENCE_S = 60.0
"""Limit between two reports of a run; an epoch takes milliseconds."""

_MAX_RANKS = 32
_MIN_ACCURACY = 0.95
_MAX_DIFFERENCE = 1e-5
"""Another order of sums changes them by about 1e-7, wrong gradients by far more."""

OnEpoch = Callable[[int, float], None]
OnPhase = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Result of a run, printed as text or with ``--json``."""

    ranks: int
    cluster: str
    """Tag of the cluster."""
    joined_s: float
    """Time until the last machine had found the others and joined the group."""
    leader: str
    view_epoch: int
    ring: tuple[str, ...]
    epochs: int
    resumed_after: int
    """Epochs before the interruption; 0 if there was none."""
    resumed_step: int
    lost: str
    """The node whose checkpoint was deleted."""
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

    def failures(self) -> list[str]:
        """List the checks that failed."""
        found = []
        if not self.is_identical:
            found.append(f"ranks hold different parameters: sha256 {self.digests}")
        if not self.largest_difference <= _MAX_DIFFERENCE:  # also when it is NaN
            what = f"{self.largest_difference:.1e} from the single-process run"
            found.append(f"parameters differ by {what}, limit {_MAX_DIFFERENCE:g}")
        if self.resumed_after != self.epochs // 2:
            when = f"{self.resumed_after}, not {self.epochs // 2}"
            found.append(f"continued after epoch {when}")
        if self.epochs >= _EPOCHS and self.accuracy < _MIN_ACCURACY:
            found.append(f"accuracy {self.accuracy:.1%} is below {_MIN_ACCURACY:.0%}")
        return found

    def lines(self) -> list[str]:
        """Describe the run in sentences."""
        speed = self.steps / self.seconds
        moved = units.format_bytes(self.steps * self.step_bytes)
        return [
            f"Paired {self.ranks} nodes on this machine with one phrase: cluster "
            f"{self.cluster}, each node has its own key.",
            f"They found each other by mDNS, authenticated by TLS and formed a group "
            f"in {self.joined_s:.1f} s.",
            f"They elected {self.leader} as leader of epoch {self.view_epoch}; ring: "
            f"{' -> '.join(self.ring)}.",
            f"Trained {self.steps} steps in {self.seconds:.2f} s ({speed:.0f} steps "
            f"per second), {self.ranks} ranks over {self.transport}.",
            *self._interruption(),
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

    def _interruption(self) -> list[str]:
        if not self.resumed_after:
            return []
        lost = ""
        if self.ranks > 1:
            lost = f"; {self.lost} had lost its disk and got it from others' copies"
        return [
            f"All nodes left after epoch {self.resumed_after}, joined again and "
            f"continued at step {self.resumed_step + 1} from their checkpoint{lost}.",
        ]


def demo(
    ranks: Annotated[
        int, typer.Option(min=1, max=_MAX_RANKS, help="Number of nodes.")
    ] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = _EPOCHS,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos",
            help="Kill a node every few seconds; the loss must not notice.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON to standard output.")
    ] = False,
) -> None:
    """Train a digit classifier with several nodes here and check the result."""
    from ringleader.cli.demo.chaos_view import show_chaos

    errors = Console(stderr=True)
    try:
        if chaos:
            raise typer.Exit(show_chaos(ranks, epochs, as_json=as_json))
        with exit_on_sigterm(), _progress(ranks, epochs) as (on_phase, on_epoch):
            result = run_demo(ranks, epochs, on_phase, on_epoch)
    except RingleaderError as exc:
        errors.print(f"demo: {exc}", style="bold red", markup=False)
        raise typer.Exit(1) from exc
    if as_json:
        typer.echo(
            json.dumps({**asdict(result), "troubles": result.failures()}, indent=1)
        )
    else:
        typer.echo("\n".join(result.lines()))
    for failure in result.failures():
        errors.print(f"demo: {failure}", style="bold red", markup=False)
    if result.failures():
        raise typer.Exit(1)


def run_demo(
    ranks: int, epochs: int, on_phase: OnPhase, on_epoch: OnEpoch
) -> DemoResult:
    """Start the ranks, train, and compare with a single-process run."""
    from ringleader.cli.demo.demo_machine import pair
    from ringleader.cli.demo.warm_python import warm_python
    from ringleader.cli.worker_pool import WorkerPool

    on_phase("importing torch, once for all nodes")
    with (
        TemporaryDirectory() as folder,
        warm_python(Path(folder, "imports.log"), lambda: None) as python,
        WorkerPool("demo", ranks) as pool,
    ):
        on_phase("starting the nodes, which look for each other")
        machines, tag = pair(ranks, Path(folder))
        for rank, machine in enumerate(machines):
            words = ("--control", pool.address, "--rank", str(rank))
            argv = python("-m", "ringleader.cli.demo.worker", *words)
            pool.start(argv, env=machine.environment())
        pool.wait_connected(_START_S)
        views, finals = _train(pool, epochs, on_epoch)
        on_phase("training once more in a single process, to compare")
        compared = pool.request({"do": "compare"}, _SILENCE_S + epochs)
    first, view = finals[0], views[0]
    return DemoResult(
        ranks=ranks,
        cluster=tag,
        joined_s=max(float(str(each["joined_s"])) for each in views[:ranks]),
        leader=str(view["leader"]),
        view_epoch=int(str(view["epoch_of_view"])),
        ring=tuple(str(name) for name in _list(view["ring"])),
        epochs=epochs,
        resumed_after=min(int(str(final["resumed_after"])) for final in finals),
        resumed_step=int(str(first["resumed_step"])),
        lost=machines[-1].name,
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
    """Train on all ranks; return what each saw of the cluster, and its result."""
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
def _progress(ranks: int, epochs: int) -> Iterator[tuple[OnPhase, OnEpoch]]:
    """Show phases and progress on stderr; for a file or a pipe, some lines instead."""
    console = Console(stderr=True, highlight=False)
    title = f"Training a digit classifier with {ranks} nodes on this machine"
    console.print(f"{title}, some 15 s if it is quiet ...", soft_wrap=True)
    every = max(1, epochs // 10)
    columns = (
        BarColumn(),
        TextColumn("epoch {task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=epochs)

        def on_phase(text: str) -> None:
            bar.update(task, description=text)
            if not console.is_terminal:
                console.print(f"{text} ...", soft_wrap=True)

        def on_epoch(epoch: int, loss: float) -> None:
            bar.update(task, completed=epoch, description=f"loss {loss:.4f}")
            if not console.is_terminal and (epoch == 1 or epoch % every == 0):
                console.print(f"epoch {epoch}/{epochs}: loss {loss:.4f}")

        yield on_phase, on_epoch
