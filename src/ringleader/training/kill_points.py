"""Named points of a step at which a test makes this process kill itself.

``RINGLEADER_KILL_AT=rs:0@3`` ends the process with SIGKILL when it reaches the point
``rs:0`` for the third time. Without the variable a point costs one comparison.

compute    before a quantum is handed out
rs:K       before bucket K is submitted
ag:K       after bucket K has been reduced
held       all buckets are there, not yet delivered
applying   delivered, before the optimizer
prepare    a view change froze this member
status     its status was given
install    a view was installed
gather:K   before bucket K is fetched or served
join:hand  a parameter is handed over to a learner, on either side
join:log   a learner follows a step of the run, on either side
join:pull  a newcomer was admitted; its state is compared and completed
copy:piece a piece of the state was sent or received
copy:whole all of it is there and was compared, on an adopter
publish    a checkpoint is being written
"""

from __future__ import annotations

import os
import signal
import threading

from ringleader.settings.kill_point import KillPoint, kill_point


class _Armed:
    """The point that is armed in this process, and how often it was reached."""

    def __init__(self, point: KillPoint | None) -> None:
        self.point = point
        self.reached = 0
        self.lock = threading.Lock()


_armed = _Armed(kill_point())


def arm(point: KillPoint | None) -> None:
    """Arm ``point`` in this process instead of what the environment says."""
    global _armed
    _armed = _Armed(point)


def reach(name: str) -> None:
    """Kill this process if ``name`` is the armed point and its turn has come."""
    armed = _armed
    if armed.point is None or armed.point.name != name:
        return
    with armed.lock:
        armed.reached += 1
        if armed.reached == armed.point.times:
            os.kill(os.getpid(), signal.SIGKILL)
