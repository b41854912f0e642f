"""docs/defects.md has a line for every defect, and names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "defects.md"
NUMBERS = {"PM": 23, "ZF": 19, "FT": 18, "CS": 13}
"""How many defects were found in each system."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ROW = re.compile(r"^\| ([A-Z]{2}-\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def functions(file: str) -> set[str]:
    """The tests and scenarios in a file."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)}


def rows() -> dict[str, str]:
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len({defect for defect, _, _ in found}) == len(found), "a line is twice"
    return {defect: tests for defect, _, tests in found}


def test_every_defect_has_a_line() -> None:
    wanted = [f"{key}-{n + 1}" for key, count in NUMBERS.items() for n in range(count)]
    assert [*rows()] == wanted


def test_every_line_names_tests_that_exist() -> None:
    for defect, cell in rows().items():
        named = TEST.findall(cell)
        assert named, f"{defect} has no test"
        for file, name in named:
            is_run = name.startswith("test_") or "/scenario_" in file
            assert is_run, f"{defect}: pytest does not run {file}::{name}"
            assert name in functions(file), f"{defect}: there is no {file}::{name}"


def test_tests_name_no_other_defects() -> None:
    known = rows().keys()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"\b(?:PM|ZF|FT|CS)-\d+\b", text))
        assert named <= known, f"{path}: {named - known}"
