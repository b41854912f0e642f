"""An environment with this package and what its wheel requires, and nothing else.

What is installed here is linked, so that it costs neither a download nor a copy.
"""

from __future__ import annotations

import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def make_base_install(folder: Path) -> Path:
    """Make the environment in ``folder``; return the folder of its commands."""
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    names: set[str] = set()
    todo = ["ringleader"]
    while todo:
        need = Requirement(todo.pop())
        name = need.name.lower().replace("_", "-")
        if name in names or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        names.add(name)
        found = metadata.distribution(name)
        todo += found.requires or []
        for top in {path.parts[0] for path in found.files or [] if path.parts}:
            origin = Path(str(found.locate_file(top)))
            if top not in ("..", "__pycache__") and origin.exists():
                (packages / top).symlink_to(origin)
    return folder / "bin"
