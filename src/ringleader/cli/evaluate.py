"""``ringleader evaluate``: test trained weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ringleader.cli.terminal import exit_on_error, is_interactive, prompt
from ringleader.errors import ConfigError

if TYPE_CHECKING:  # torch takes a second to import, which --help must not wait for
    from matplotlib.axes import Axes

    from ringleader.paramserver.evaluation import Evaluation, Example
    from ringleader.paramserver.tasks.task import Task

_MAX_CLASSES = 20
"""Classes of the largest confusion matrix that is printed: it must fit a screen."""
_TEXT_CHARACTERS = 40
_COLUMNS = 8


def evaluate(  # noqa: PLR0913 - one argument per flag
    task: Annotated[
        str | None,
        typer.Argument(help="digits, mnist, chars:FILE, images:DIR or a .py file."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="The server's --out directory, or a .safetensors file."),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=0, help="Use the checkpoint of this version, not the newest."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="File for torch.load; default: trained_model.pth beside the weights."
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="File for plots; default: evaluation.png beside the weights."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=64, help="Predictions to print.")
    ] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.")
    ] = False,
) -> None:
    """Test trained weights, and export them for torch.load."""
    with exit_on_error("evaluate"):
        task = task or _ask("Task", "TASK is missing: for example digits")
        path = weights or Path(
            _ask("Weights", "--weights is missing: give the server's --out directory")
        )
        from ringleader.paramserver import evaluation as evaluation
        from ringleader.paramserver.tasks.device import pick_device
        from ringleader.paramserver.tasks.loading import load_task

        loaded = load_task(task)
        file = evaluation.find_weights(path, version)
        model = evaluation.load_model(loaded, file)
        found = evaluation.evaluate(
            loaded, model, pick_device(device), num_examples=max(samples, _COLUMNS)
        )
        exported = export or file.with_name("trained_model.pth")
        evaluation.export(model, exported)
        drawn = picture or file.with_name("evaluation.png")
        is_drawn = _draw(loaded, found, drawn)
    if as_json:
        typer.echo(json.dumps(_facts(found, file, exported), indent=1))
        return
    _show(loaded, found, samples)
    typer.echo(f"weights {file}; for torch.load: {exported}", nl=not is_drawn)
    if is_drawn:
        typer.echo(f"; picture: {drawn}")


def _ask(question: str, otherwise: str) -> str:
    if not is_interactive():
        raise ConfigError(otherwise)
    return prompt(f"{question}: ", otherwise).reveal().strip()


def _facts(found: Evaluation, file: Path, exported: Path) -> dict[str, object]:
    confusion = None if found.confusion is None else found.confusion.tolist()
    return {
        "weights": str(file),
        "exported": str(exported),
        "samples": found.num_samples,
        "loss": found.loss,
        "accuracy": found.accuracy,
        "metrics": dict(found.metrics),
        "confusion": confusion,
    }


def _show(task: Task, found: Evaluation, samples: int) -> None:
    typer.echo(f"task {task.name}, {found.num_samples} test samples")
    typer.echo(f"loss {found.loss:.4f}")
    for name, value in found.metrics.items():
        typer.echo(f"{name} {value:.4f}")
    if found.accuracy is not None:
        typer.echo(f"accuracy {100 * found.accuracy:.1f} %")
    if found.confusion is not None:
        _show_confusion(task, found.confusion.tolist())
    for example in found.examples[:samples]:
        typer.echo(f"  {_words(task, example)}")


def _show_confusion(task: Task, rows: list[list[int]]) -> None:
    if len(rows) > _MAX_CLASSES:
        typer.echo(f"confusion of {len(rows)} classes: use --json to print it")
        return
    typer.echo("confusion (rows: true class; columns: predicted class)")
    table = Table(box=None)
    names = [_name(task, number) for number in range(len(rows))]
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for number, row in enumerate(rows):
        cells = [
            f"[bold]{count}[/]" if number == i else str(count or "")
            for i, count in enumerate(row)
        ]
        table.add_row(names[number], *cells)
    Console().print(table)


def _words(task: Task, example: Example) -> str:
    """Describe the true and the predicted class in a line."""
    if example.true.ndim:
        true, predicted = (
            "".join(_name(task, int(i)) for i in each.flatten()[:_TEXT_CHARACTERS])
            for each in (example.true, example.predicted)
        )
        return f"true {true!r}, predicted {predicted!r}"
    true = _name(task, int(example.true))
    predicted = _name(task, int(example.predicted))
    verdict = "right" if true == predicted else "wrong"
    return f"true {true}, predicted {predicted}: {verdict}"


def _name(task: Task, number: int) -> str:
    return task.classes[number] if number < len(task.classes) else str(number)


def _draw(task: Task, found: Evaluation, path: Path) -> bool:
    """Plot samples and the confusion matrix; return whether there was one."""
    if found.confusion is None or found.accuracy is None:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError:
        text = "no plot: matplotlib is missing; pip install 'ringleader[internet]'"
        typer.echo(text, err=True)
        return False
    figure = Figure(figsize=(8, 8), layout="constrained")
    grid = figure.add_gridspec(6, _COLUMNS)
    for column, example in enumerate(found.examples[:_COLUMNS]):
        if _is_image(example):
            _draw_example(figure.add_subplot(grid[0, column]), task, example)
    axes = figure.add_subplot(grid[1:, :])
    axes.set_title(f"{task.name}: accuracy {100 * found.accuracy:.1f} %")
    _draw_confusion(axes, task, found.confusion.tolist())
    try:
        figure.savefig(path, dpi=120)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
    return True


def _draw_example(axes: Axes, task: Task, example: Example) -> None:
    axes.imshow(example.input.movedim(0, -1).squeeze(-1).numpy(), cmap="gray_r")
    is_right = int(example.true) == int(example.predicted)
    name = _name(task, int(example.predicted))
    axes.set_title(name, color="black" if is_right else "red")
    axes.axis("off")


def _draw_confusion(axes: Axes, task: Task, rows: list[list[int]]) -> None:
    axes.imshow(rows, cmap="Blues")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(rows) > _MAX_CLASSES:
        return
    names = [_name(task, number) for number in range(len(rows))]
    axes.set_xticks(range(len(rows)), names)
    axes.set_yticks(range(len(rows)), names)
    most = max(max(row) for row in rows)
    for y, row in enumerate(rows):
        for x, count in enumerate(row):
            color = "white" if 2 * count > most else "black"
            axes.text(x, y, str(count or ""), ha="center", va="center", color=color)


def _is_image(example: Example) -> bool:
    return example.input.ndim == 3 and example.input.shape[0] in (1, 3)
