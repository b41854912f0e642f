"""``ringleader checkpoint``: list, verify, export, reshard or prune checkpoints."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ringleader.cli.terminal import add_id, exit_on_error, print_tables
from ringleader.errors import ConfigError

if TYPE_CHECKING:  # torch takes a second to import, which --help must not wait for
    from ringleader.checkpoint.catalog import Found
    from ringleader.checkpoint.inspection import Report
    from ringleader.checkpoint.storage import Storage


class Action(StrEnum):
    """What to do."""

    LIST = "list"
    VERIFY = "verify"
    EXPORT = "export"
    RESHARD = "reshard"
    PRUNE = "prune"


def checkpoint(  # noqa: PLR0913 - one parameter per option of the command
    action: Annotated[Action, typer.Argument(help="What to do.")],
    folder: Annotated[str, typer.Argument(help="Folder of the checkpoints, or a URL.")],
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Take this step, not the newest (verify: not all)."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            help="export: the file, or with --hugging-face the directory; reshard: the "
            "folder of the new checkpoint."
        ),
    ] = None,
    ranks: Annotated[
        int, typer.Option(min=1, help="reshard: how many ranks the files are for.")
    ] = 1,
    hugging_face: Annotated[
        bool,
        typer.Option(
            "--hugging-face", help="export: write the layout of transformers."
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="export --hugging-face: the model's config.json to add."),
    ] = None,
    keep: Annotated[
        int, typer.Option(min=1, help="prune: how many checkpoints stay.")
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.")
    ] = False,
) -> None:
    """List, verify, export, reshard or prune the checkpoints in a folder.

    It sees the files of this machine. Without a shared folder, each machine
    holds its own shards and those of one other machine.
    """
    with exit_on_error("checkpoint"):
        from ringleader.checkpoint.storage import open_storage

        storage = open_storage(folder)
        if action is Action.LIST:
            _list(storage, as_json=as_json)
        elif action is Action.VERIFY:
            _verify(storage, step, as_json=as_json)
        elif action is Action.EXPORT:
            if config is not None and not hugging_face:
                raise ConfigError("--config needs --hugging-face")
            _export(storage, step, to, config, hugging_face, as_json=as_json)
        elif action is Action.RESHARD:
            _reshard(storage, step, to, ranks, as_json=as_json)
        else:
            _prune(storage, keep, as_json=as_json)


def _list(storage: Storage, *, as_json: bool) -> None:
    from ringleader.checkpoint.inspection import inspect

    reports = inspect(storage)
    if as_json:
        typer.echo(json.dumps([_as_dict(report) for report in reports], indent=2))
        return
    if not reports:
        raise ConfigError(f"{storage}: no checkpoints here")
    table = Table(box=None)
    add_id(table, "folder", (report.folder for report in reports))
    for column in ("step", "saved", "MB", "ranks", "files here"):
        table.add_column(column)
    for report in reports:
        each = _as_dict(report)
        if report.found is None:
            table.add_row(report.folder, "", report.problem)
        else:
            files = f"{each['files_here']} of {each['files']}"
            saved = str(each["created"])[:19].replace("T", " ")
            megabytes = f"{report.found.manifest.num_bytes / 1e6:.1f}"
            ranks = str(each["ranks"])
            table.add_row(
                report.folder, str(each["step"]), saved, megabytes, ranks, files
            )
    print_tables(table)


def _as_dict(report: Report) -> dict[str, object]:
    if report.found is None:
        return {"folder": report.folder, "problem": report.problem}
    kept = report.found.manifest
    return {
        "folder": report.folder,
        "step": kept.step,
        "created": kept.created,
        "bytes": kept.num_bytes,
        "ranks": kept.world_size,
        "files": len(kept.files),
        "files_here": report.held,
    }


def _verify(storage: Storage, step: int | None, *, as_json: bool) -> None:
    from ringleader.checkpoint.inspection import inspect, verify

    reports = [r for r in inspect(storage) if step in (None, _step(r))]
    if not reports:
        raise ConfigError(f"{storage}: no checkpoint{_of(step)} here")
    results: list[dict[str, object]] = []
    for report in reports:
        problems = [report.problem] if report.found is None else []
        if report.found is not None:
            problems = verify(storage, report.found)
        results.append({**_as_dict(report), "problems": problems})
        if not as_json:
            typer.echo(f"{report.folder}: {'; '.join(problems) or _intact(report)}")
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    if any(result["problems"] for result in results):
        raise typer.Exit(1)


def _intact(report: Report) -> str:
    """Say that nothing is damaged, and what this machine cannot know."""
    files = len(report.found.manifest.files) if report.found is not None else 0
    if report.held == files:
        return "intact"
    return f"what is here is intact: {report.held} of {files} files"


def _export(
    storage: Storage,
    step: int | None,
    to: Path | None,
    config: Path | None,
    hugging_face: bool,
    *,
    as_json: bool,
) -> None:
    from ringleader.checkpoint.export import export_file, export_hugging_face

    found = _find(storage, step)
    target = to or Path("." if hugging_face else "model.safetensors")
    if hugging_face:
        count = export_hugging_face(storage, found, target, config)
    else:
        count = export_file(storage, found, target)
    if as_json:
        done = {"step": found.manifest.step, "tensors": count, "path": str(target)}
        typer.echo(json.dumps(done))
    else:
        typer.echo(f"{target}: {count} tensors of step {found.manifest.step}")


def _reshard(
    storage: Storage, step: int | None, to: Path | None, ranks: int, *, as_json: bool
) -> None:
    from ringleader.checkpoint.reshard import reshard
    from ringleader.checkpoint.storage import open_storage

    if to is None:
        raise ConfigError("reshard: --to is missing: the folder of the new checkpoint")
    source = _find(storage, step)
    target = open_storage(to)
    made = reshard(storage, source, target, ranks)
    before, kept = source.manifest, made.manifest
    if as_json:
        files = dict(sorted(kept.files.items()))
        done = {"step": kept.step, "ranks": ranks, "folder": made.folder}
        typer.echo(json.dumps({**done, "path": str(target), "files": files}))
        return
    typer.echo(
        f"{target}/{made.folder}: step {kept.step} for {ranks} ranks in "
        f"{len(kept.files)} files, {kept.num_bytes / 1e6:.1f} MB"
    )
    if before.world_size != ranks:
        typer.echo(
            f"left out: what only the {before.world_size} ranks that saved it have "
            "(random numbers, residuals of compression); it begins anew"
        )


def _prune(storage: Storage, keep: int, *, as_json: bool) -> None:
    from ringleader.checkpoint.retention import remove_old

    removed = remove_old(storage, keep, _find(storage, None).folder)
    if as_json:
        typer.echo(json.dumps(removed))
    else:
        typer.echo(f"removed: {', '.join(removed) or 'nothing'}")


def _find(storage: Storage, step: int | None) -> Found:
    """Return the newest checkpoint, or the newest of a step."""
    from ringleader.checkpoint.inspection import inspect

    for report in inspect(storage):
        if report.found is not None and step in (None, _step(report)):
            return report.found
    raise ConfigError(f"{storage}: no checkpoint{_of(step)} here")


def _step(report: Report) -> int | None:
    return report.found.manifest.step if report.found is not None else None


def _of(step: int | None) -> str:
    return "" if step is None else f" of step {step}"
