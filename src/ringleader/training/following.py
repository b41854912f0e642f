"""Following: a newcomer follows the run before it is a member, and members serve it.

A newcomer with a large state is held back: it copies parameters and follows the
gradients of the run while the others train on, as fast as it can follow. It asks for
admission when it is level, so that the others wait only until digests are compared. A
newcomer that cannot follow joins all the same, and the others wait while it copies the
state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ringleader.deadline import Deadline
from ringleader.discovery.static_peers import parse
from ringleader.groups.caller_observer import phase
from ringleader.node.peering.peer_connection import Address, PeerConnection
from ringleader.training.control.run_membership import RunMembership
from ringleader.training.join.dial_sources import dial_sources
from ringleader.training.join.live_learner import LiveLearner
from ringleader.training.join.live_source import SLOWEST, LiveSource, is_tensorwise
from ringleader.training.join.upload_pace import UploadPace
from ringleader.training.run_news import tell
from ringleader.training.state.replicated_state import ReplicatedState

_log = logging.getLogger(__name__)

LIVE_BYTES = 1 << 20
"""Parameters of a smaller size are copied while the others wait: with the state of Adam
that takes 30 ms at 1 Gbit/s, and 2 s at 16 Mbit/s."""

LEVEL_S: Final = 120.0
"""A newcomer that gets nothing more of the state for so long joins all the same, by
copying."""

LAST_STEPS_S: Final = 5.0
"""How long an admitted newcomer waits for the gradients of the last steps, at least."""


class Following:
    """Both sides of following a run, of one process. User's thread only."""

    def __init__(
        self,
        state: ReplicatedState,
        version: Callable[[], int],
        membership: RunMembership,
        *,
        has_gradients: bool = True,
    ) -> None:
        self.state = state
        self.pace = UploadPace()
        """How fast this member sends parameters and gradients to newcomers."""
        self._has_gradients = has_gradients
        """False in rounds of local steps, which have no gradients to follow."""
        self._version = version
        self._membership = membership
        self._learner: LiveLearner | None = None
        self._source: LiveSource | None = None

    def follow(self) -> None:
        """Follow the run until this process is level, if it is held back."""
        if not self._membership.is_held:
            return
        size = sum(p.nbytes for p in self.state.model.parameters())
        is_large = size >= LIVE_BYTES and self._has_gradients
        if is_large and is_tensorwise(self.state.optimizer):
            self._learner = LiveLearner(self.state, self._dial, tell)
            self._learner.start()
            tell(
                f"joining: the state is taken over while the others train; copied "
                f"while they wait, if nothing more of it comes for {LEVEL_S:g} s"
            )
            with phase("join: follow the run", holds_up=True):
                is_level = self._learner.wait_level(LEVEL_S)
            if not is_level:
                tell("joining: this machine could not follow the run, so it copies")
        self._membership.release()

    async def _dial(self) -> Sequence[PeerConnection]:
        peers = parse(self._membership.config.peers)
        known: list[list[Address]] = [[(each.host, each.port)] for each in peers]
        return await dial_sources(self._membership, known)

    def finish(self, version: int) -> bool:
        """Stop following when ``version`` is reached.

        Returns True if the state should be that of the run, but for small parts.
        """
        learner, self._learner = self._learner, None
        if learner is None:
            return False
        size = sum(p.nbytes for p in self.state.model.parameters())
        # Copying the whole state would take longer still than the gradients of a step.
        wait_s = LAST_STEPS_S + size / SLOWEST
        return learner.finish(version, Deadline.after(wait_s))

    def serve(self) -> None:
        """Let newcomers follow this member, from its next step on."""
        if self._source is None and self._has_gradients:
            self._source = LiveSource(self.state, self._version, self.pace)
            self._source.attach()
            self._membership.serve_state(self._source.serve)

    @property
    def is_followed(self) -> bool:
        """Whether newcomers get the steps of this member."""
        return self._source is not None and self._source.has_learners

    def wait_for_learners(self, must_go_on: Callable[[], bool]) -> None:
        """Wait between two steps for newcomers whose link is slow."""
        if self._source is not None:
            self._source.wait_for_learners(must_go_on)

    def applied(self, version: int) -> None:
        """Note that a step was applied, also without a step of the optimizer."""
        if self._source is not None:
            self._source.skipped(version)

    def close(self) -> None:
        """End the connections of newcomers."""
        if self._source is not None:
            self._source.close()
        if self._learner is not None:
            self._learner.finish(0, Deadline.after(0.0))
