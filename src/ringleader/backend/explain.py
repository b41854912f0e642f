"""What a torch user needs to know besides the error itself."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch._C._distributed_c10d import DebugLevel, get_debug_level

from ringleader.errors import PeerError, RingleaderError
from ringleader.groups.group import Group


class Explainer:
    """Adds to errors of one group: global ranks and, in debug mode, the whole state.

    As a context manager it does so for what is raised within.
    """

    def __init__(self, group: Group, owner: Any) -> None:
        self._group = group
        self._owner = owner

    def __call__(self, error: BaseException) -> BaseException:
        """The error to show: same type, same peer, more text."""
        if not isinstance(error, RingleaderError):
            return error
        note = self._note(error)
        if not note or note in error.text:
            return error
        kind: Callable[..., RingleaderError] = type(error)
        better = kind(*error.args[:-1], error.text + note)
        better.__cause__ = error
        return better

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
        ranks: list[int] = self._owner.global_ranks()
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
        group, owner = self._group, self._owner
        progress = group.progress()
        links = ", ".join(f"{p}: {kind}" for p, kind in group.links().items())
        return (
            f"\n  group {owner.getGroupName()!r} {owner.getGroupDesc()!r}"
            f"\n  this is rank {group.rank} of {group.size}, global ranks "
            f"{owner.global_ranks()}"
            f"\n  links: {links or 'none'}"
            f"\n  last call: {progress.call}"
            f"\n  of its {progress.count} elements final: "
            f"{list(progress.complete) or 'none'}"
            f"\n  timeout: {group.timeout_s} s"
        )
