"""``changes_environment``: whether a program sets environment variables itself.

torch and its libraries read some variables when they are imported. A program that sets
one expects that torch is imported after that.
"""

from __future__ import annotations

import ast
from pathlib import Path

from ringleader.node.launch.local_modules import local_modules
from ringleader.node.launch.program import Program

_CHANGING = {"setdefault", "update", "pop", "popitem", "clear", "__setitem__"}
_FUNCTIONS = {"putenv", "unsetenv", "load_dotenv"}


def changes_environment(program: Program) -> bool:
    """Return whether a program, or a module beside it, may set variables.

    Also if one of the files is not a Python source that can be read.
    """
    path = Path(program.path)
    beside = local_modules(path, program.root)
    files = [path, *(program.root / name for name in beside)]
    return any(_may_change(file) for file in files)


def _may_change(file: Path) -> bool:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return True
    return any(_is_change(node) for node in ast.walk(tree))


def _is_change(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return _is_environ(value)
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            return name in _FUNCTIONS or (name in _CHANGING and _is_environ(value))
        case ast.Call(func=ast.Name(id=name)):
            return name in _FUNCTIONS
        case ast.AugAssign(target=target):
            return _is_environ(target)
    return False


def _is_environ(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in ("environ", "environb")
    return False
