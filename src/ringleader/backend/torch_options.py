"""Converts torch's option objects and overloads to the arguments of our group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch import Tensor
from torch._C._distributed_c10d import ReduceOp
from torch.nn import Parameter

from ringleader.errors import ConfigError
from ringleader.groups.work import Work

T = TypeVar("T")
Body = Callable[..., Work]

_NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
_NO_LIMIT = timedelta(0)
PLAIN_TENSORS = frozenset((Tensor, Parameter))
"""Types of tensors that are not wrapped by functional collectives."""


class Reduction:
    """A reduction of our group, and a factor for the inputs (torch's PREMUL_SUM)."""

    __slots__ = ("factor", "name")

    def __init__(self, name: str, factor: float | Tensor | None = None) -> None:
        self.name = name
        self.factor = factor

    def around(self, body: Body) -> Body:
        """Return ``body``, preceded by the multiplication if there is a factor."""
        factor = self.factor
        if factor is None:
            return body

        def scale(tensor: Tensor, outs: list[Tensor]) -> Tensor:
            by = factor.to(tensor.device) if isinstance(factor, Tensor) else factor
            if any(tensor is out for out in outs):
                return tensor.detach().mul_(by)
            return tensor.detach() * by

        def scaled(ins: list[Tensor], outs: list[Tensor], **how: Any) -> Work:
            return body([scale(t, outs) for t in ins], outs, **how)

        return scaled


_PLAIN = {op: Reduction(name) for op, name in _NAMES.items()}
_SUM, _PLAIN_SUM = ReduceOp.SUM, _PLAIN[ReduceOp.SUM]


def reduction(op: Any) -> Reduction:
    """Convert a ReduceOp or a member of its enumeration."""
    if op == _SUM:  # the usual case; looking up torch's enumeration takes 1.5 us
        return _PLAIN_SUM
    kind = getattr(op, "op", op)
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    if kind == ReduceOp.PREMUL_SUM:
        return Reduction("sum", op.__getstate__()[1])
    raise ConfigError(f"reduction {op} is not supported")


def timeout_of(opts: Any) -> float | None:
    """Return the timeout of the operation, or None for that of the group."""
    timeout: timedelta = opts.timeout
    return timeout.total_seconds() if timeout > _NO_LIMIT else None


def options_of(kind: type[T], opts: Any, named: Mapping[str, Any] | None = None) -> T:
    """Return the options of a call.

    torch's shorter overloads pass a root or a reduction instead of options.
    """
    if isinstance(opts, kind) and not named:
        return opts
    made: Any = opts if isinstance(opts, kind) else kind()
    given = dict(named or {})
    if made is not opts and opts is not None:
        is_root = isinstance(opts, int) and hasattr(made, "rootRank")
        given.setdefault("root" if is_root else "op", opts)
    for name, value in given.items():
        field = {"root": "rootRank", "op": "reduceOp"}.get(name, name)
        if not hasattr(made, field):
            raise ConfigError(f"{kind.__name__} has no {name}")
        setattr(made, field, value)
    return made  # type: ignore[no-any-return]


def unwrap(tensor: Tensor) -> Tensor:
    """Return the tensor itself: functional collectives wrap their results."""
    if type(tensor) is Tensor or not hasattr(tensor, "trigger_wait"):
        return tensor
    inside: Tensor = tensor.trigger_wait()
    return inside


def single_tensor(
    tensors: Tensor | list[Tensor] | tuple[Tensor, ...], what: str
) -> Tensor:
    """Return the only tensor of a call, which torch passes in a list."""
    if not isinstance(tensors, (list, tuple)):
        return unwrap(tensors)
    if len(tensors) != 1:
        raise ConfigError(f"{what}: one tensor per rank, not {len(tensors)}")
    return unwrap(tensors[0])


def tensor_list(lists: Any, size: int, what: str) -> list[Tensor]:
    """Return one tensor per rank, from a list or a list of one list."""
    if len(lists) == 1 and not isinstance(lists[0], Tensor):
        lists = lists[0]
    if len(lists) != size:
        raise ConfigError(f"{what}: {len(lists)} tensors for {size} ranks")
    return [unwrap(tensor) for tensor in lists]


def one_or_all(tensors: list[Tensor]) -> Any:
    """Return the tensor if it is only one, which holds all ranks' parts; else all."""
    return tensors[0] if len(tensors) == 1 else tensors


def is_split(tensor: Tensor, splits: Sequence[int], size: int) -> bool:
    """Return whether ``split`` can split the rows of ``tensor``."""
    if not tensor.dim():
        return False
    rows = tensor.shape[0]
    if not splits:
        return rows % size == 0
    return len(splits) == size and sum(splits) == rows and min(splits) >= 0


def split(tensor: Tensor, splits: Sequence[int], size: int) -> list[Tensor]:
    """Split the rows of ``tensor`` by ``splits``, or evenly without ``splits``."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if rows % size:
            raise ConfigError(f"{rows} rows cannot be split evenly over {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        text = f"splits {list(splits)} do not fit {rows} rows and {size} ranks"
        raise ConfigError(text)
    return list(tensor.split_with_sizes(list(splits)))
