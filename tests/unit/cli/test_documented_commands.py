"""Every ``ringleader`` command line in the documentation and the recipes can be typed.

Recipes rot: an option is renamed, and a page or a manifest keeps the old name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ringleader
from ringleader.cli.main import SUMMARIES, load_command

ROOT = Path(__file__).resolve().parents[3]
RECIPES = sorted((ROOT / "examples/recipes").iterdir())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "CONTRIBUTING.md", *(ROOT / "examples").glob("*.md"), *RECIPES]

CALL = re.compile(r"(?:^|[\s`$;&|(])ringleader ([a-z]+)((?:[ \t][^`#\n]*)?)")
OPTION = re.compile(r"--?[a-z][a-z0-9-]*")
END = re.compile(r"\s(?:&&|\|\|?|;|>|<)|[;)]\s|\)$")


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the options of each command line, without values."""
    for found in CALL.finditer(text.replace("\\\n", " ")):
        name, rest = found.groups()
        if name in SUMMARIES:
            rest = END.split(rest)[0]
            words = re.sub(r"[\[\]]|\.\.\.", " ", rest).split()
            if name == "run":  # what follows the program is the program's
                pairs = enumerate(zip(["", *words], words, strict=False))
                ends = [i for i, (a, b) in pairs if b.endswith(".py") or a == "-m"]
                words = words[: ends[0]] if ends else words
            options = [is_one[0] for w in words if (is_one := OPTION.match(w))]
            yield name, options


@cache
def known_options(name: str) -> frozenset[str]:
    command: Any = load_command(name)
    options = (o for p in command.params for o in (*p.opts, *p.secondary_opts))
    return frozenset(options) | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_its_commands_have_these_options(page: Path) -> None:
    for name, options in commands(page.read_text()):
        unknown = set(options) - known_options(name)
        assert not unknown, f"ringleader {name} has no {', '.join(sorted(unknown))}"


def test_commands_are_found_in_pages_and_recipes() -> None:
    text = "Type `ringleader run --nodes 2 a.py --lr 1`, or ringleader join --pin."
    assert list(commands(text)) == [("run", ["--nodes"]), ("join", ["--pin"])]
    module = "ringleader run --survive -m ringleader work LINK --cluster"
    assert list(commands(module)) == [("run", ["--survive", "-m"])]
    usage = "ringleader doctor [--peer HOST[:PORT] ...] [--json]\n"
    assert list(commands(usage)) == [("doctor", ["--peer", "--json"])]
    assert sum(1 for p in RECIPES for _ in commands(p.read_text())) >= 8


NAME = re.compile(r"\bringleader((?:\.[A-Za-z_]\w*)+)")


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.suffix == ".md"], ids=lambda p: p.name
)
def test_its_python_names_exist(page: Path) -> None:
    """FT-18: programs in the documentation use what the package has."""
    programs = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    for found in NAME.finditer("\n".join(programs)):
        value: Any = ringleader
        for name in found[1].split(".")[1:3]:
            if isinstance(value, type):
                continue  # fields of classes need an object
            if isinstance(value, ModuleType) and not hasattr(value, name):
                value = import_module(f"{value.__name__}.{name}")
            else:
                value = getattr(value, name)


LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.suffix == ".md"],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_its_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for found in LINK.finditer(text):
        target, anchor = found.groups()
        if "://" in target:
            continue
        file = (page.parent / target).resolve()
        assert file.exists(), f"{page.name}: {target} is not there"
        if anchor and file.suffix == ".md":
            assert anchor[1:] in anchors(file), f"{page.name}: {target}{anchor}"


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return frozenset(title.strip().replace(" ", "-") for title in plain)
