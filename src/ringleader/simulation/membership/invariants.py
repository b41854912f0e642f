"""Checks what must hold after every event, and once a cluster has converged."""

from __future__ import annotations

from collections.abc import Iterable

from ringleader.membership.election import expected_views
from ringleader.membership.member import Member, View, ViewId
from ringleader.simulation.membership.simulated_node import SimulatedNode
from ringleader.simulation.membership.trace_text import (
    name_of,
    names_of,
    view_name,
)


class InvariantViolation(AssertionError):
    """An invariant does not hold; the text says which one and at which node."""


class InvariantChecker:
    """Remembers all installed views and checks each freeze and install."""

    def __init__(self) -> None:
        self.views: dict[ViewId, View] = {}
        self.num_installs = 0
        self.requires_fresh = False
        """True if a view may hold no payload of before the freeze."""

    def freeze(self, node: SimulatedNode, view_id: ViewId) -> None:
        """Record that a node has promised a view."""
        who = f"{name_of(node.member)} froze for {view_name(view_id)}"
        if node.installed is not None and view_id <= node.installed:
            raise InvariantViolation(
                f"{who} after it had installed {view_name(node.installed)}"
            )
        if node.frozen is not None and view_id <= node.frozen:
            raise InvariantViolation(
                f"{who} after it had frozen for {view_name(node.frozen)}"
            )
        node.frozen = view_id

    def install(self, node: SimulatedNode, view: View) -> None:
        """Record that a node has installed a view."""
        self.num_installs += 1
        who = f"{name_of(node.member)} installed {view_name(view.id)}"
        known = self.views.setdefault(view.id, view)
        if known is view:
            _check_content(view)
        elif known != view:
            raise InvariantViolation(
                f"{who} as {_show(view)}, another one as {_show(known)}"
            )
        if node.member not in view.members:
            raise InvariantViolation(f"{who} of {names_of(view.members)}")
        if node.installed is not None and view.id <= node.installed:
            raise InvariantViolation(f"{who} after {view_name(node.installed)}")
        if node.frozen is None or view.id < node.frozen:
            promised = "nothing" if node.frozen is None else view_name(node.frozen)
            raise InvariantViolation(f"{who} and had promised {promised}")
        if self.requires_fresh and node.renewed_for != view.id:
            raise InvariantViolation(f"{who} with a payload of before its freeze")
        node.installed = view.id


def _show(view: View) -> str:
    return f"{names_of(view.members)} with {b', '.join(view.payloads).decode()}"


def _check_content(view: View) -> None:
    which = f"view {view_name(view.id)}"
    leaders = [m for m in view.members if m.node == view.id.leader]
    if len(leaders) != 1 or leaders[0].incarnation != view.id.incarnation:
        raise InvariantViolation(f"{which} has the leaders {names_of(leaders)}")
    if len({m.node for m in view.members}) != len(view.members):
        raise InvariantViolation(f"{which} has a node twice: {names_of(view.members)}")
    for member in view.members:
        if not view.payload_of(member).startswith(member.incarnation.encode()):
            raise InvariantViolation(
                f"{which} has not the payload of {name_of(member)}"
            )


def convergence_problem(
    nodes: Iterable[SimulatedNode], mutual: set[frozenset[Member]]
) -> str | None:
    """Explain why the nodes are not in the views they should have; None if they are.

    ``nodes`` are the running nodes, ``mutual`` the pairs of incarnations that can
    reach each other.
    """
    at = {node.member: node for node in nodes}
    for island in expected_views(at, mutual):
        problems = (_problem(at[member], island) for member in island)
        why = next(filter(None, problems), None)
        ids = {at[member].installed for member in island}
        if why is None and len(ids) > 1:
            why = f"{names_of(island)} have {len(ids)} views"
        if why is not None:
            return why
    return None


def _problem(node: SimulatedNode, island: tuple[Member, ...]) -> str | None:
    """Explain why a node has not converged to the view of ``island``."""
    machine = node.machine
    view = None if machine is None else machine.view
    who = name_of(node.member)
    if machine is None or view is None:
        return f"{who} has no view"
    if tuple(sorted(view.members)) != island:
        return f"{who} has the view {names_of(view.members)}, not {names_of(island)}"
    if machine.is_frozen:
        return f"{who} is frozen"
    if view.leader != island[0]:
        return f"{who} is led by {name_of(view.leader)}, not by {name_of(island[0])}"
    if view.payload_of(node.member) != node.payload:
        return f"{who} hung {node.payload!r} on its view, and it has another"
    return None
