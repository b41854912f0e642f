"""What must hold after every event, and what must hold at rest."""

from __future__ import annotations

from collections.abc import Iterable

from ringleader.membership.election import islands
from ringleader.membership.member import Member, View, ViewId
from ringleader.simulation.membership.simulated_node import Node
from ringleader.simulation.membership.trace_text import name, names, title


class Broken(AssertionError):
    """An invariant does not hold; the text says which, where and when."""


class Watch:
    """Remembers every view that was ever installed, and by whom."""

    def __init__(self) -> None:
        self.views: dict[ViewId, View] = {}
        self.num_installs = 0

    def freeze(self, node: Node, view_id: ViewId) -> None:
        """A node has promised a view."""
        who = f"{name(node.member)} froze for {title(view_id)}"
        if node.installed is not None and view_id <= node.installed:
            raise Broken(f"{who} after it had installed {title(node.installed)}")
        if node.frozen is not None and view_id <= node.frozen:
            raise Broken(f"{who} after it had frozen for {title(node.frozen)}")
        node.frozen = view_id

    def install(self, node: Node, view: View) -> None:
        """A node has installed a view."""
        self.num_installs += 1
        who = f"{name(node.member)} installed {title(view.id)}"
        known = self.views.setdefault(view.id, view)
        if known is view:
            _check_content(view)
        elif known != view:
            raise Broken(f"{who} as {_show(view)}, another one as {_show(known)}")
        if node.member not in view.members:
            raise Broken(f"{who} of {names(view.members)}")
        if node.installed is not None and view.id <= node.installed:
            raise Broken(f"{who} after {title(node.installed)}")
        if node.frozen is None or view.id < node.frozen:
            promised = "nothing" if node.frozen is None else title(node.frozen)
            raise Broken(f"{who} and had promised {promised}")
        node.installed = view.id


def _show(view: View) -> str:
    return f"{names(view.members)} with {b', '.join(view.payloads).decode()}"


def _check_content(view: View) -> None:
    which = f"view {title(view.id)}"
    leaders = [m for m in view.members if m.node == view.id.leader]
    if len(leaders) != 1 or leaders[0].incarnation != view.id.incarnation:
        raise Broken(f"{which} has the leaders {names(leaders)}")
    if len({m.node for m in view.members}) != len(view.members):
        raise Broken(f"{which} has a node twice: {names(view.members)}")
    for member in view.members:
        if not view.payload_of(member).startswith(member.incarnation.encode()):
            raise Broken(f"{which} has not the payload of {name(member)}")


def unrest(nodes: Iterable[Node], mutual: set[frozenset[Member]]) -> str | None:
    """Why the cluster is not at rest in the views it should have; None: it is.

    ``nodes`` are those that run, ``mutual`` the pairs of lives that can hear each
    other.
    """
    at = {node.member: node for node in nodes}
    for island in islands(at, mutual):
        troubles = (_trouble(at[member], island) for member in island)
        why = next(filter(None, troubles), None)
        ids = {at[member].installed for member in island}
        if why is None and len(ids) > 1:
            why = f"{names(island)} have {len(ids)} views"
        if why is not None:
            return why
    return None


def _trouble(node: Node, island: tuple[Member, ...]) -> str | None:
    """Why a node is not at rest in the view of ``island``."""
    subject = node.subject
    view = None if subject is None else subject.view
    who = name(node.member)
    if subject is None or view is None:
        return f"{who} has no view"
    if tuple(sorted(view.members)) != island:
        return f"{who} has the view {names(view.members)}, not {names(island)}"
    if subject.is_frozen:
        return f"{who} is frozen"
    if view.leader != island[0]:
        return f"{who} is led by {name(view.leader)}, not by {name(island[0])}"
    if view.payload_of(node.member) != node.payload:
        return f"{who} hung {node.payload!r} on its view, and it has another"
    return None
