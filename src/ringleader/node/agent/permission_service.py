"""The service ``permission``: the user allows or refuses jobs while the agent runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ringleader.errors import ConfigError, ProtocolError
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.node.protocol.local_requests import (
    PERMISSION,
    RequestDone,
    SetJobsPermission,
)
from ringleader.node.protocol.resident_record import read_record, write_record

_DECODER = msgspec.msgpack.Decoder(SetJobsPermission)
_LIMIT_BYTES = 256


def install(core: AgentCore) -> None:
    """Register the service at an agent; only for processes of its user."""

    async def serve(stream: ServiceStream) -> None:
        if not core.config.is_resident:
            raise ConfigError("only an agent of 'ringleader up' accepts jobs")
        try:
            asked = _DECODER.decode(await stream.read(_LIMIT_BYTES))
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise ProtocolError(stream.who, f"invalid request ({exc})") from exc
        _set_permission(core, allowed=asked.allowed)
        await stream.send(RequestDone())

    core.services.register(PERMISSION, serve, for_peers=False)


def _set_permission(core: AgentCore, *, allowed: bool) -> None:
    core.config = msgspec.structs.replace(core.config, accepts_jobs=allowed)
    home = Path(core.config.home)
    record = read_record(home)
    if record is not None:
        write_record(home, msgspec.structs.replace(record, config=core.config))
    core.publish()
