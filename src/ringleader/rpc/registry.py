"""The functions that other ranks may call, and the classes that they may send.

Both are known by name, in the whole process. Nothing else can be called from outside:
a name is looked up here, never imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

from ringleader.errors import ConfigError

MAX_NAME = 200
Function = Callable[..., object]
T = TypeVar("T", bound=Callable[..., object])

_functions: dict[str, Function] = {}
_types: dict[str, type[Any]] = {}
_names: dict[object, str] = {}
"""Function or class -> its name."""


@overload
def register(item: T, *, name: str = "") -> T: ...
@overload
def register(item: None = None, *, name: str = "") -> Callable[[T], T]: ...
def register(item: T | None = None, *, name: str = "") -> T | Callable[[T], T]:
    """Let other ranks call this function by its name; a decorator.

    A class (a msgspec.Struct or a dataclass) can then be an argument or a result. Both
    sides register it. ``name`` replaces ``__name__``. Returns the function itself, so
    it can still be called here.
    """
    if item is None:
        return lambda function: register(function, name=name)
    chosen = name or getattr(item, "__name__", "")
    if not isinstance(chosen, str) or not 0 < len(chosen) <= MAX_NAME:
        raise ConfigError(f"rpc.register: {item!r} needs a name; pass name=")
    if isinstance(item, type):
        if not issubclass(item, msgspec.Struct) and not dataclasses.is_dataclass(item):
            text = "is neither a msgspec.Struct nor a dataclass, and cannot be sent"
            raise ConfigError(f"rpc.register: class {chosen} {text}")
        _add(_types, chosen, item)
    elif callable(item):
        _add(_functions, chosen, item)
    else:
        raise ConfigError(f"rpc.register: {item!r} is not a function")
    _names[item] = chosen
    return item


def _add(table: dict[str, Any], name: str, item: object) -> None:
    """Enter an item; the same definition may come again, when a module is reloaded."""
    known = table.get(name, item)
    if _definition(known) != _definition(item):
        text = f"{name!r} is registered for {_definition(known)} already"
        raise ConfigError(f"rpc.register: {text}; pass another name=")
    table[name] = item


def _definition(item: object) -> str:
    where = getattr(item, "__module__", ""), getattr(item, "__qualname__", repr(item))
    return ".".join(map(str, where))


def find_function(name: str) -> Function | None:
    """Return the registered function, or None."""
    return _functions.get(name)


def function_names() -> list[str]:
    """Return the names of all registered functions."""
    return sorted(_functions)


def find_type(name: str) -> type[Any] | None:
    """Return the registered class, or None."""
    return _types.get(name)


def name_of(func: str | Function) -> str:
    """Return the name under which ``func`` is called: itself, or as it is registered.

    Raises ConfigError for a function that is not registered here.
    """
    if isinstance(func, str):
        if not 0 < len(func) <= MAX_NAME:
            raise ConfigError(f"rpc: {func[:40]!r}... is no name of a function")
        return func
    try:
        return _names[func]
    except (KeyError, TypeError):
        text = f"{func!r} is not registered; decorate it with @rpc.register"
        raise ConfigError(f"rpc: {text}") from None


def type_name(kind: type[Any]) -> str | None:
    """Return the name of a registered class, or None."""
    return _names.get(kind)
