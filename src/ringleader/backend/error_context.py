"""Adds to errors what torch users need: global ranks, and the group's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from torch._C._distributed_c10d import DebugLevel, get_debug_level

from ringleader.errors import PeerError, RingleaderError
from ringleader.groups.group import Group


@dataclass(slots=True)
class GroupIdentity:
    """The name and ranks by which torch knows a group."""

    ranks: list[int]
    """The global rank of each of its ranks."""
    name: str = ""
    desc: str = ""


class ErrorContext:
    """Adds global ranks to errors of one group and, in debug mode, the group's state.

    Call it with an error, or use it as a context manager around code that raises.
    """

    def __init__(self, group: Group, identity: GroupIdentity) -> None:
        self._group = group
        self._identity = identity

    def __call__(self, error: BaseException) -> BaseException:
        """Return an error of the same type and peer with more text, or ``error``."""
        if not isinstance(error, RingleaderError):
            return error
        note = self._note(error)
        if not note:
            return error
        kind: Callable[..., RingleaderError] = type(error)
        return kind(*error.args[:-1], error.text + note)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            better = self(error)
            if better is not error:
                raise better from error

    def _note(self, error: RingleaderError) -> str:
        ranks = self._identity.ranks
        peer = getattr(error, "peer", None)
        note = ""
        if isinstance(error, PeerError) and isinstance(peer, int):
            is_member = 0 <= peer < len(ranks)
            if is_member and ranks[peer] != peer:
                note = f" [rank {peer} of this group is global rank {ranks[peer]}]"
        if get_debug_level() == DebugLevel.DETAIL:
            note += self._details()
        return note

    def _details(self) -> str:
        group, who = self._group, self._identity
        progress = group.progress()
        links = ", ".join(f"{p}: {kind}" for p, kind in group.links().items())
        return (
            f"\n  group {who.name!r} {who.desc!r}"
            f"\n  this is rank {group.rank} of {group.size}, global ranks {who.ranks}"
            f"\n  links: {links or 'none'}"
            f"\n  last call: {progress.call}"
            f"\n  of its {progress.count} elements final: "
            f"{list(progress.complete) or 'none'}"
            f"\n  timeout: {group.timeout_s} s"
        )
