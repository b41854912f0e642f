"""``changes_environment``: whether a program sets environment variables itself.

torch and its libraries read some variables when they are imported. A program that sets
one expects that torch is imported after that.
"""

from __future__ import annotations

import ast

from ringleader.node.launch.local_modules import LocalSources

_CHANGING = {"setdefault", "update", "pop", "popitem", "clear", "__setitem__"}
_FUNCTIONS = {"putenv", "unsetenv", "load_dotenv"}


def changes_environment(sources: LocalSources) -> bool:
    """Return whether a program, or a module beside it, may set variables.

    Also if not all of the sources are known.
    """
    if not sources.is_complete:
        return True
    return any(_is_change(node) for tree in sources.trees for node in ast.walk(tree))


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
