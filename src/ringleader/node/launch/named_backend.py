"""``names_gloo``: whether a program asks for Gloo by its name.

If it does not, a group of Gloo is the choice of a library that was given no name:
Accelerate, Trainer and Lightning all ask torch for Gloo on a machine without a GPU.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ringleader.node.launch.local_modules import LocalSources

_NAME = re.compile(r"(\w+:)?gloo")
"""A backend, or an entry of a device map such as ``cpu:gloo,cuda:nccl``."""


def names_gloo(sources: LocalSources, args: Sequence[str]) -> bool:
    """Return whether a string of the program, or an argument, is Gloo's name.

    True also if the program could not be read completely: it may name it.
    """
    if not sources.is_complete or any(map(_is_name_in, args)):
        return True
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _is_name(node.value)
        for tree in sources.trees
        for node in ast.walk(tree)
    )


def _is_name_in(argument: str) -> bool:
    """``gloo``, or an option with its value as ``--backend=gloo``."""
    return _is_name(argument.rpartition("=")[2])


def _is_name(text: str) -> bool:
    entries = text.lower().split(",")
    return any(_NAME.fullmatch(entry.strip()) for entry in entries)
