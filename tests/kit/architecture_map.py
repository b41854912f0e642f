"""Write the map of packages in docs/architecture.md from the table in layers.py.

python -m tests.kit.architecture_map
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.kit.layers import LAYERS, Package

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN, END = "<!-- map:begin -->", "<!-- map:end -->"


def rows() -> Iterator[str]:
    """Lines of the map."""
    yield "| layer | package | plane | purpose |"
    yield "|--:|---|---|---|"
    for number, layer in zip(range(len(LAYERS), 0, -1), LAYERS, strict=True):
        for package in layer:
            yield from package_rows(number, package)


def package_rows(number: int, package: Package) -> Iterator[str]:
    """The row of a package and one row for each of its sub-packages."""
    plane = f"{package.plane}, pure" if package.is_pure else package.plane
    yield f"| {number} | `{package.name}` | {plane} | {package.purpose} |"
    for name, purpose in package.rooms:
        yield f"| | `{package.name}/{name}` | | {purpose} |"


def with_map(text: str) -> str:
    """``text`` with the current map between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([f"{before}{BEGIN}", *rows(), f"{END}{after}"])


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text()))
