"""How the user steers the choice of algorithms (the seeds' CollectiveConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ringleader.collectives.algorithm import algorithms
from ringleader.errors import ConfigError

AUTO = "auto"
_ALIASES = {"centralized": "star"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveConfig:
    """Strategies per operation. ``auto`` lets the cost model decide.

    A strategy is an algorithm's name, ``tree:K`` for a tree of arity K, ``centralized``
    (the star) or, for reduce and broadcast, ``direct`` (the star as well).
    """

    num_devices: int = 1
    """The most ranks on one host; only looked at when ``num_nodes`` is set."""

    local_all_reduce: str = AUTO
    """Inside one host, and for groups that have no hierarchy."""

    local_reduce: str = AUTO
    local_broadcast: str = AUTO

    num_nodes: int | None = None
    """Hosts. Setting it turns the hierarchy on: the local strategies inside each host,
    the global ones among one rank per host. All three of those must then be set, and
    the group must really have that many hosts."""

    global_all_reduce: str | None = None
    global_reduce: str | None = None
    global_broadcast: str | None = None

    tree_threshold_bytes: int | None = None
    """Below this size ``auto`` takes the tree. None, the default: the measured cost
    decides, which no fixed number can."""

    tree_arity: int = 2
    """Children of an inner rank where a strategy says just ``tree``."""

    timeout_s: float = 60.0
    """For every operation that is not given one."""

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
            text = f"num_nodes is set, so these must be too: {', '.join(missing)}"
            raise ConfigError(text)

    @classmethod
    def single_node(cls, num_devices: int) -> Self:
        """One host: a ring among its ranks."""
        return cls(num_devices=num_devices, local_all_reduce="ring")

    @classmethod
    def multi_node(cls, num_devices: int, num_nodes: int) -> Self:
        """Several hosts: trees inside, a ring across."""
        return cls(
            num_devices=num_devices,
            num_nodes=num_nodes,
            local_all_reduce="tree:2",
            global_all_reduce="ring",
            global_reduce="tree:2",
            global_broadcast="tree:2",
        )

    def strategy(self, operation: str) -> tuple[str, int]:
        """(algorithm or auto, arity) for ``operation`` without hierarchy."""
        text = getattr(self, f"local_{operation}", AUTO)
        return parse_strategy(operation, text, self.tree_arity)


def parse_strategy(operation: str, text: str, arity: int) -> tuple[str, int]:
    """``ring``, ``tree``, ``tree:3``, ``auto`` ... -> (algorithm, arity)."""
    name, _, suffix = text.partition(":")
    name = _ALIASES.get(name, name)
    if name == "direct" and operation in ("reduce", "broadcast"):
        name = "star"
    if suffix:
        if name != "tree" or not suffix.isdecimal():
            raise ConfigError(f"{operation}: strategy {text!r} is not understood")
        arity = int(suffix)
    if arity < 2:
        raise ConfigError(f"{operation}: tree arity must be >= 2, got {arity}")
    known = (*algorithms(operation), AUTO, "shm", "hierarchy")
    if name not in known:
        raise ConfigError(f"{operation}: no strategy {text!r}; there are: {known}")
    return name, arity
