"""Creates a connected process group when torch asks for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from ringleader.backend import device_map, torch_release
from ringleader.backend.device_backend import DeviceBackend
from ringleader.backend.options import BackendOptions
from ringleader.backend.process_group import RingleaderGroup
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.groups import formation
from ringleader.groups.link_credentials import load_credentials
from ringleader.settings import LinkSettings
from ringleader.settings.run import run_settings


def create_backend(request: Any, options: object) -> RingleaderGroup | Backend:
    """Create torch's group, or one backend of it if a device map names others, too."""
    parts = device_map.shared_parts()
    if parts is None:
        return create_process_group(request, options)
    if not parts:
        group = create_process_group(request, options)
        rank, size = request.group_rank, request.group_size
        parts.append(DeviceBackend(rank, size, lambda: group))
    return parts[0]


def create_process_group(request: Any, options: object) -> RingleaderGroup:
    """Connect to the other ranks through torch's store, within the group's timeout."""
    torch_release.report(torch.__version__)
    if options is None:
        options = BackendOptions()
    if not isinstance(options, BackendOptions):
        kind = type(options).__name__
        raise ConfigError(f"pg_options must be ringleader.BackendOptions, not {kind}")
    links = LinkSettings.from_environment()
    timeout_s = request.timeout.total_seconds()
    rank, size, store = request.group_rank, request.group_size, request.store
    ranks = tuple(request.global_ranks_in_group or range(size))
    chosen = formation.Options(
        deadline=Deadline.after(timeout_s),
        config=options.config,
        transport=options.transport or links.transport,
        num_stripes=options.connections or links.connections,
        dial_limits=formation.dial_limits(links),
        addresses=links.addresses,
        credentials=load_credentials(links),
        plaintext=links.plaintext,
        ports=links.ports,
        world_ranks=ranks,
    )
    name = _name(request.group_id, ranks)
    group = None
    try:
        group = formation.over_store(store, rank, size, name, chosen)
        group.timeout_s = timeout_s
        intra_host = options.intra_host or links.intra_host
        return _kind().wrap(group, store, list(ranks), intra_host)
    except BaseException:
        if group is not None:
            group.close()
        raise


def _kind() -> type[RingleaderGroup]:
    """Return the class of the group: the default one survives if a run asks for it."""
    if run_settings() is None or dist.is_initialized():
        return RingleaderGroup
    # Imported here: few programs need it.
    from ringleader.backend.surviving_group import SurvivingGroup

    return SurvivingGroup


def _name(group_id: str, ranks: Sequence[int]) -> str:
    """Return a name that only the ranks of one group have.

    torch's group id alone is not unique: each rank numbers the groups that it was asked
    for. ``new_subgroups(group=half)`` forms a group of each half at the same time, with
    the same id and in the same store.
    """
    return f"torch:{group_id}:{','.join(map(str, ranks))}"
