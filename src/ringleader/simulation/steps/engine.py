"""StepEngine: the data side of the simulated run: work, reductions, gathers, copies.

Each bucket of an attempt has an owner, which sums the contributions of all members and
sends the total to all. A frame of a view that is promised and not yet installed waits
in its link; a frame of an older view is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.plan import Gather
from ringleader.simulation.membership.trace_text import name_of
from ringleader.simulation.steps.data_side import Content, Entry
from ringleader.simulation.steps.node import StepNode
from ringleader.simulation.steps.rules import StepRules
from ringleader.simulation.steps.toy_model import NUM_BUCKETS


class Send(Protocol):
    """Sends a frame to the machine of a member, if that life still runs there."""

    def __call__(
        self, source: StepNode, to: Member, kind: str, *content: object
    ) -> None: ...


class StepEngine:
    """What the user's threads and the links between members do."""

    def __init__(
        self, rng: Random, rules: StepRules, send: Send, tell: Callable[[str], None]
    ) -> None:
        self._rng = rng
        self._rules = rules
        self._send = send
        self._tell = tell

    def receive(self, to: StepNode, kind: str, content: tuple[Any, ...]) -> bool:
        """Handle a frame. Return False if it has to wait."""
        match kind:
            case "part":
                return self._take_part(to, *content)
            case "final":
                return self._take_final(to, *content)
            case "wake":
                to.is_asleep = False
                to.deliver(*content)
            case "pull":
                self._serve_state(to, *content)
            case "state":
                to.take_state(*content)
        return True

    def act(self, node: StepNode) -> bool:
        """Let the user's thread of a machine act; return False if it has to wait."""
        member = node.member
        plan = member.plan
        if plan is not None and plan.lacks_state and member.is_torn:
            return node.load_disk()
        if plan is None or plan.is_paused or member.is_frozen or node.is_asleep:
            return False
        if member.must_adopt:
            source = self._rng.choice(plan.sources)
            self._send(node, source, "pull", node.me, member.plan_view.id)
            return False
        if isinstance(plan.action, Gather):
            self._serve_buckets(node, plan.action)
            if member.version < plan.version and member.attempt is None:
                return node.begin_gather()
        return self._deliver_complete(node) or self._work(node)

    def _deliver_complete(self, node: StepNode) -> bool:
        partial = node.member.partial
        is_idle = node.member.attempt is None or node.is_asleep
        if is_idle or partial is None or not partial.is_complete:
            return False
        held = (node.member.plan_view.id, partial.attempt)
        if self._rng.random() < 0.1:  # its thread sleeps before it delivers
            node.is_asleep = True
            self._send(node, node.me, "wake", *held)
            return True
        node.deliver(*held)
        self._tell(f"{name_of(node.me)} is at version {node.member.version}")
        return True

    def _work(self, node: StepNode) -> bool:
        """Compute, contribute to the next step, or publish while it is reduced."""
        member, view = node.member, node.view
        assert view is not None
        if member.attempt is not None:
            if self._rng.random() < 0.1:
                node.publish()
            return False
        if node.assigned_at != (view.id, member.version):
            node.assign()
            self._compute(node)
            return True
        if node.data.work.pending:
            self._compute(node)
            return True
        begun = node.contribute()
        if begun is None:
            return False
        attempt, sent = begun
        for bucket in range(NUM_BUCKETS):
            owner = view.members[(bucket + attempt.version) % len(view.members)]
            part = (attempt, bucket, node.me, sent[bucket])
            self._send(node, owner, "part", *part)
        return True

    def _compute(self, node: StepNode) -> None:
        """Compute some of the quanta that are left; most often all of them."""
        count = len(node.data.work.pending)
        node.data.compute(
            count if self._rng.random() < 0.8 else count // 2, node.quantum_s
        )

    def _is_early(self, node: StepNode, view_id: ViewId) -> bool:
        """Return True if a frame belongs to a view that is promised, not installed."""
        return view_id == node.frozen_for and self._rules.keeps_early_frames

    def _take_part(
        self,
        node: StepNode,
        attempt: Attempt,
        bucket: int,
        sender: Member,
        value: Content,
    ) -> bool:
        """Add a contribution at the owner of a bucket; the last one makes it final."""
        if self._is_early(node, attempt.view):
            return False
        view = node.view
        if view is None or view.id != attempt.view or node.frozen_for is not None:
            return True
        parts = node.received.setdefault((attempt, bucket), {})
        parts[sender] = value
        if self._is_final(node, view, attempt, parts):
            given = [parts[m] for m in view.members if m in parts]
            total = _total(given)
            for member in view.members:
                self._send(node, member, "final", view.id, attempt, bucket, total)
            parts.clear()
        return True

    def _is_final(
        self, node: StepNode, view: View, attempt: Attempt, parts: dict[Member, Content]
    ) -> bool:
        if self._rules.waits_for_all:
            return len(parts) == len(view.members)
        return all(
            m in parts for m in view.members if node.has_work(m, attempt.version)
        )

    def _take_final(
        self,
        node: StepNode,
        view_id: ViewId,
        attempt: Attempt,
        bucket: int,
        value: Content,
    ) -> bool:
        """Take a final bucket, reduced in this view or served for its gather."""
        if self._is_early(node, view_id):
            return False
        view = node.view
        if view is None or view.id != view_id:
            return True
        if node.take_bucket(view_id, attempt, bucket, value):
            if self._rng.random() < 0.7:
                self._deliver_complete(node)
            return True
        member = node.member
        is_awaited = member.version < attempt.version and member.attempt is None
        return not is_awaited or member.is_frozen or member.must_adopt

    def _serve_buckets(self, node: StepNode, gather: Gather) -> None:
        """Send the buckets that the plan wants from this member, once per view."""
        view = node.view
        assert view is not None
        if node.served == view.id:
            return
        node.served = view.id
        for bucket, holder in enumerate(gather.holders):
            if holder == node.me:
                value = node.data.stored(gather.attempt.version, bucket)
                for member in view.members:
                    final = (view.id, gather.attempt, bucket, value)
                    self._send(node, member, "final", *final)

    def _serve_state(self, node: StepNode, adopter: Member, view_id: ViewId) -> None:
        state = node.serve_state(view_id)
        if state is not None:
            for part in (0, 1):
                self._send(node, adopter, "state", view_id, part, *state)


def _total(parts: list[Content]) -> Content:
    """Return the sum of parts, or the entries of the sideband in ring order."""
    entries = tuple(part for part in parts if isinstance(part, Entry))
    return entries or sum(part for part in parts if isinstance(part, float))
