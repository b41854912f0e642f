"""Loads a task: a built-in one, or a Python file."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ringleader.errors import ConfigError
from ringleader.paramserver.tasks import chars, digits, images, mnist
from ringleader.paramserver.tasks.task import (
    BATCH_SIZE,
    Task,
    default_optimizer,
    default_predict,
)

BUILT_IN = ("digits", "mnist", "chars", "images")


def load_task(spec: str) -> Task:
    """Load a task: ``digits``, ``mnist[:DIR]``, ``chars:FILE``, ``images:DIR``, or a
    Python file."""
    name, _, argument = spec.partition(":")
    if name in BUILT_IN and not Path(spec).is_file():
        return _built_in(name, argument)
    if spec.endswith(".py"):
        return load_task_file(Path(spec))
    known = "digits, mnist, chars:TEXTFILE, images:DIRECTORY"
    raise ConfigError(f"unknown task {spec!r}; use {known}, or a .py file")


def load_task_file(path: Path) -> Task:
    """Load the task in the Python file ``path``."""
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"task {path}: cannot read it: {exc}") from exc
    module = _run(path)
    missing = [n for n in ("model", "dataset", "loss") if not hasattr(module, n)]
    if missing:
        text = ", ".join(f"{name}()" for name in missing)
        raise ConfigError(f"task {path}: it must define {text}")
    return Task(
        name=path.stem,
        code=code,
        make_model=module.model,
        make_samples=module.dataset,
        loss=module.loss,
        make_optimizer=getattr(module, "optimizer", default_optimizer),
        predict=getattr(module, "predict", default_predict),
        metrics=getattr(module, "metrics", None),
        classes=_classes(path, getattr(module, "classes", ())),
        batch_size=_batch_size(path, getattr(module, "batch_size", BATCH_SIZE)),
    )


def _built_in(name: str, argument: str) -> Task:
    if name == "digits":
        if argument:
            raise ConfigError(f"task digits has its own data; omit {argument!r}")
        return digits.task()
    if name == "mnist":
        return mnist.task(Path(argument) if argument else None)
    if not argument:
        what = "TEXTFILE" if name == "chars" else "DIRECTORY"
        raise ConfigError(f"task {name} needs data: write {name}:{what}")
    make = chars.task if name == "chars" else images.task
    return make(Path(argument))


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ringleader_task_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as exc:  # the user's code can raise anything
        text = f"task {path}: importing it failed: {type(exc).__name__}: {exc}"
        raise ConfigError(text) from exc
    return module


def _classes(path: Path, names: object) -> tuple[str, ...]:
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise ConfigError(f"task {path}: classes must be a list of names")
    return tuple(str(name) for name in names)


def _batch_size(path: Path, size: object) -> int:
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"task {path}: batch_size must be 1 or more, not {size!r}")
    return size
