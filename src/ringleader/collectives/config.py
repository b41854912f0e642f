"""The user's configuration of collective algorithms."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.collectives.algorithm import algorithms
from ringleader.errors import ConfigError

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveConfig:
    """Strategies per operation; ``auto`` lets the cost model choose.

    A strategy is the name of an algorithm (see docs/algorithms.md), or ``tree:K`` for a
    tree of arity K.
    """

    num_devices: int = 1
    """The most ranks on one host; only used if ``num_nodes`` is set."""

    local_all_reduce: str = AUTO
    """Strategy inside one host, and for groups without hierarchy."""

    local_reduce: str = AUTO
    local_broadcast: str = AUTO

    num_nodes: int | None = None
    """Number of hosts. Setting it enables the hierarchy: local strategies inside each
    host, global strategies among one rank per host. All three global strategies must
    then be set, and the group must have that many hosts."""

    global_all_reduce: str | None = None
    global_reduce: str | None = None
    global_broadcast: str | None = None

    tree_threshold_bytes: int | None = None
    """``auto`` chooses the tree below this size. None: the cost model decides, which
    knows the measured network."""

    tree_arity: int = 2
    """Children per rank for the strategy ``tree`` without a number."""

    timeout_s: float = 60.0
    """Timeout of operations that are not given one."""

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ConfigError(f"num_devices must be >= 1, got {self.num_devices}")
        if self.tree_arity < 2:
            raise ConfigError(f"tree_arity must be >= 2, got {self.tree_arity}")
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s must be > 0, got {self.timeout_s}")
        if self.tree_threshold_bytes is not None and self.tree_threshold_bytes < 0:
            text = f"tree_threshold_bytes must be >= 0, got {self.tree_threshold_bytes}"
            raise ConfigError(text)
        self._check_nodes()
        for operation in ("all_reduce", "reduce", "broadcast"):
            for scope in ("local", "global"):
                strategy = getattr(self, f"{scope}_{operation}")
                if strategy is not None:
                    parse_strategy(operation, strategy, self.tree_arity)

    def _check_nodes(self) -> None:
        if self.num_nodes is None:
            return
        if self.num_nodes < 1:
            raise ConfigError(f"num_nodes must be >= 1, got {self.num_nodes}")
        names = ("global_all_reduce", "global_reduce", "global_broadcast")
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            text = f"num_nodes is set, so set these too: {', '.join(missing)}"
            raise ConfigError(text)

    def strategy(self, operation: str) -> tuple[str, int]:
        """Return (algorithm or "auto", arity) for ``operation`` without hierarchy."""
        text = getattr(self, f"local_{operation}", AUTO)
        return parse_strategy(operation, text, self.tree_arity)


def parse_strategy(operation: str, text: str, arity: int) -> tuple[str, int]:
    """Parse ``ring``, ``tree``, ``tree:3``, ``auto`` ... into (algorithm, arity)."""
    name, _, suffix = text.partition(":")
    if suffix:
        if name != "tree" or not suffix.isdecimal():
            raise ConfigError(
                f"{operation}: invalid strategy {text!r}; a number follows tree only, "
                "as in 'tree:3'"
            )
        arity = int(suffix)
    if arity < 2:
        raise ConfigError(f"{operation}: tree arity must be >= 2, got {arity}")
    known = (*algorithms(operation), AUTO, "shm", "hierarchy")
    if name not in known:
        raise ConfigError(
            f"{operation}: unknown strategy {text!r}; choose one of: {', '.join(known)}"
        )
    return name, arity
