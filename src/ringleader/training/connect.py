"""connect: makes this process a member of a run."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ringleader.errors import ConfigError
from ringleader.membership.steps.decide import Partition
from ringleader.settings import LinkSettings
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_membership import RunMembership
from ringleader.training.member_data import MemberData
from ringleader.training.own_endpoint import OwnEndpoint
from ringleader.training.state.run_checkpoints import History
from ringleader.training.view_session import ViewSession
from ringleader.transport.shared_listener import ListenerLease


class Connected(NamedTuple):
    """The two sides of the control thread."""

    session: ViewSession
    membership: RunMembership


def connect(
    config: RunConfig,
    about: MemberData,
    partition: Partition,
    history: History | None = None,
    *,
    is_held: bool = False,
) -> Connected:
    """Listen, start the control thread, and return it and what gets its views.

    ``about`` is what the others have to know of this process, without its address.
    ``history`` is that of a state which this process has read from a checkpoint. If it
    ``is_held``, it joins a run: it meets the others when it is released, and has no
    state until it has got theirs.

    Raises ConfigError if RINGLEADER_TRANSPORT is neither auto nor tcp.
    """
    links = LinkSettings.from_environment()
    if links.transport not in ("auto", "tcp"):
        text = "the machines of a run that survives connect to each other directly"
        raise ConfigError(f"transport {links.transport!r}: {text}; use auto or tcp")
    lease = ListenerLease.take(links.ports, config.credentials)
    endpoint = OwnEndpoint(lease, links.addresses)
    data = msgspec.structs.replace(about, endpoint=endpoint.read(), name=config.name)
    session = ViewSession(data, lease, partition)
    session.read_endpoint = endpoint.read
    session.shares_memory = links.transport == "auto"
    membership = RunMembership(config, session)
    session.bind(membership, has_state=not is_held)
    endpoint.read_linked = membership.own_hosts
    if history is not None and history.last is not None:
        session.step.restore(
            history.version,
            history.chain,
            history.chain_before,
            history.last,
            history.samples,
        )
    try:
        membership.start(is_held=is_held)
    except BaseException:
        lease.close()
        raise
    return Connected(session, membership)
