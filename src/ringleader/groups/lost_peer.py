"""Finds out why the connection to a peer was lost."""

from __future__ import annotations

from ringleader.deadline import Deadline
from ringleader.errors import PeerLost, RingleaderError
from ringleader.groups.control_channel import ControlChannel
from ringleader.transport.link import wait_ready

NOTICE_S = 0.1
"""Time to wait for a notice that explains a lost connection."""


def explain(error: RingleaderError, control: ControlChannel) -> RingleaderError:
    """Return a better explanation than ``error`` if the control streams have one."""
    if control.aborted is not None:
        return control.aborted
    if not isinstance(error, PeerLost):
        return error
    until = Deadline.after(NOTICE_S)
    try:
        while not until.is_over():
            control.progress()
            if error.peer in control.vanished_peers():
                return error
            if control.has_left(error.peer):
                text = "left the group while this rank waited for it"
                return PeerLost(error.peer, text)
            wait_ready(control.wanted(), min(0.01, until.left_s()))
    except RingleaderError as better:
        return better
    return error
