"""open_connected: connects a group and remembers it until the end of the program."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref

from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.groups.connectors import Connector, at_end
from ringleader.groups.group import Group, handle_of, open_group
from ringleader.groups.known_links import CostRow
from ringleader.groups.measure_links import learn_network
from ringleader.groups.share_cores import share_cores
from ringleader.settings.launch import note_group

_open_groups: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()
"""By their id."""


def open_groups() -> list[Group]:
    """The groups of this process; other threads may form some meanwhile."""
    found = [ref() for ref in _open_groups.valuerefs()]  # copied at once
    return [each for each in found if each is not None]


@atexit.register
def close_open_groups() -> None:
    """Say goodbye at the end of the program, or abort if it ends by an exception."""
    reason = getattr(sys, "last_value", None)
    for each in open_groups():
        with contextlib.suppress(Exception):
            if reason is not None:
                name = type(reason).__name__
                each.abort(f"rank {each.rank} ended with {name}: {reason}")
            each.close()
    for end in list(at_end.values()):
        end()


def _forget_open_groups() -> None:
    """Close the connections of the parent in a forked child."""
    for each in open_groups():
        handle = handle_of(each)
        handle.runner.leave_to_parent()
        with contextlib.suppress(Exception):
            handle.hang_up()
    _open_groups.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_open_groups)


def _num_local_ranks() -> int:
    """Return how many ranks this host has in the largest of the open groups."""
    return max((_num_local(each) for each in open_groups()), default=1)


def _num_local(group: Group) -> int:
    hosts = handle_of(group).network.hosts
    return hosts.count(hosts[group.rank])


def open_connected(  # noqa: PLR0913
    rank: int,
    size: int,
    connector: Connector,
    view_id: str,
    deadline: Deadline,
    *,
    config: CollectiveConfig | None = None,
    known: CostRow | None = None,
    world_ranks: tuple[int, ...] = (),
    is_view: bool = False,
) -> Group:
    """Connect all ranks and learn their network, or raise and leave nothing open.

    If the deadline is cancelled, the group is aborted, whatever it does by then.
    """
    formed: Group | None = None
    try:
        mesh = connector(range(size), view_id, deadline)
        formed = open_group(
            rank,
            mesh,
            view_id=view_id,
            connect=connector,
            config=config,
            world_ranks=world_ranks,
        )
        handle_of(formed).is_view = is_view
        handle_of(formed).on_close = connector.close
        if deadline.cancellation is not None:
            deadline.cancellation.on_cancel(formed.abort)
        learn_network(formed, mesh, deadline, connector.hub, known)
        share_cores(formed, _num_local_ranks(), deadline)
    except BaseException:
        if formed is not None:
            formed.close()
        connector.close()
        raise
    _open_groups[id(formed)] = formed
    note_group()
    return formed
