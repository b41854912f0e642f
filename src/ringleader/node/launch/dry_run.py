"""What ``ringleader run --dry-run`` can do with a program."""

from __future__ import annotations

import ast

from ringleader.errors import ConfigError
from ringleader.node.launch.local_modules import LocalSources
from ringleader.node.launch.program import Program


def plans_by_itself(sources: LocalSources) -> bool:
    """Return whether a program calls ``parallelize``, which ends a dry run.

    Any other program would train. False if not all of its sources are known.
    """
    nodes = (node for tree in sources.trees for node in ast.walk(tree))
    return sources.is_complete and any(_is_parallelize(node) for node in nodes)


def check_dry_run(program: Program, sources: LocalSources) -> None:
    """Raise ``ConfigError`` if a dry run of this machine's part would train."""
    if not plans_by_itself(sources):
        text = f"--dry-run: {program.name} does not call ringleader.parallelize"
        text = f"{text}, whose plan ends a dry run, so it would train"
        hint = (
            "after ringleader up, without --here, it prepares and checks all machines"
        )
        raise ConfigError(f"{text}; {hint}")


def _is_parallelize(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="parallelize")):
            return True
        case ast.Call(func=ast.Attribute(attr="parallelize")):
            return True
    return False
