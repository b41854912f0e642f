"""The file with the results of a benchmark, with a verdict for each of its bars."""

from __future__ import annotations

import json
import time
from pathlib import Path

DEPTH = 3
"""Levels of nested results that are written with one entry per line."""


def dated(name: str) -> Path:
    """Return the file of today's results."""
    folder = Path(__file__).with_name("results")
    return folder / f"{name}-{time.strftime('%Y-%m-%d')}.json"


def bar(text: str, found: object, *, is_met: bool) -> dict[str, object]:
    """Return a bar, what was found, and the verdict."""
    verdict = "met" if is_met else "MISSED"
    print(f"{verdict:6} {text}: {found}", flush=True)
    return {"bar": text, "found": found, "verdict": verdict}


def save(file: Path, results: dict[str, object]) -> None:
    """Write the results in full or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(_text(results, DEPTH, "") + "\n")
    part.replace(file)


def _text(value: object, depth: int, indent: str) -> str:
    if not isinstance(value, (dict, list)) or not value or depth == 0:
        return json.dumps(value)
    inner = f"{indent} "
    if isinstance(value, list):
        if not isinstance(value[0], dict):
            return json.dumps(value)
        lines = [inner + _text(each, 0, inner) for each in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    lines = [
        f"{inner}{json.dumps(str(key))}: {_text(each, depth - 1, inner)}"
        for key, each in value.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
