"""From torch's request for a group to one that is connected."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from ringleader.backend.process_group import RingleaderGroup
from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.groups import formation
from ringleader.settings import Wires


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """``pg_options`` of ``init_process_group`` and ``new_group``.

    What is None is taken from the environment: RINGLEADER_TRANSPORT ("auto" or "tcp")
    and RINGLEADER_CONNECTIONS. RINGLEADER_CREDENTIALS encrypts all connections.
    """

    transport: str | None = None
    """"auto" shares memory between ranks of one host, "tcp" never does."""
    connections: int | None = None
    """TCP connections per peer; more than one helps on long fat networks."""
    config: CollectiveConfig | None = None
    """Which algorithms to use; its ``timeout_s`` gives way to torch's ``timeout``."""


def process_group(request: Any, options: object) -> RingleaderGroup:
    """Meet the others in torch's store and connect, within the group's timeout."""
    if options is None:
        options = BackendOptions()
    if not isinstance(options, BackendOptions):
        kind = type(options).__name__
        raise ConfigError(f"pg_options must be ringleader.BackendOptions, not {kind}")
    wires = Wires.from_environment()
    timeout_s = request.timeout.total_seconds()
    chosen = formation.Options(
        deadline=Deadline.after(timeout_s),
        config=options.config,
        transport=options.transport or wires.transport,
        num_stripes=options.connections or wires.connections,
        addresses=wires.addresses,
        credentials=formation.load_credentials(wires.credentials),
    )
    rank, size, store = request.group_rank, request.group_size, request.store
    # torch numbers its groups anew after destroy_process_group, in the same store.
    name = f"torch:{request.group_id}"
    counter = f"ringleader/{name}/turn/{rank}"
    turn = store.add(counter, 1)
    group = None
    try:
        group = formation.over_store(store, rank, size, f"{name}#{turn}", chosen)
        group.timeout_s = timeout_s
        ranks = list(request.global_ranks_in_group) or list(range(size))
        return RingleaderGroup(group, store, ranks)
    except BaseException:
        if group is not None:
            group.close()
        with contextlib.suppress(RuntimeError):  # the same turn can be tried again
            store.add(counter, -1)
        raise
