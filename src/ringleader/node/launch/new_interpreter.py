"""``needs_new_interpreter``: whether a program cannot run in a fork of the fork server.

It cannot if it sets environment variables, or has modules that are named like installed
ones: the server may have imported the installed ones, for torch.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

from ringleader.node.launch.environment_changes import changes_environment
from ringleader.node.launch.local_modules import LocalSources


def needs_new_interpreter(sources: LocalSources) -> bool:
    """Return whether the program must import torch itself."""
    return changes_environment(sources) or _hides_another_module(sources)


def _hides_another_module(sources: LocalSources) -> bool:
    """Return whether a module beside the program has the name of another one."""
    root = sources.root.resolve()
    elsewhere = [place for place in sys.path if Path(place).resolve() != root]
    parts = {path.relative_to(sources.root).parts[0] for path in sources.modules}
    names = {part.removesuffix(".py") for part in parts}
    return any(PathFinder.find_spec(name, elsewhere) is not None for name in names)
