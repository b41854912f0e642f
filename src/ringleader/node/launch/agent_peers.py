"""``AgentPeers``: the other workers of a run, as the agent of this machine knows them.

Part of a worker of ``ringleader run --survive``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

from ringleader.errors import InternalError, PeerLost, PeerUnreachable
from ringleader.membership.member import Member
from ringleader.node.protocol import framing
from ringleader.node.protocol.agent_client import AGENT
from ringleader.node.protocol.local_requests import (
    FollowRun,
    RequestFailed,
    decode_reply,
)
from ringleader.node.protocol.run_peers import RunPeers
from ringleader.node.protocol.socket_path import short_path

log = logging.getLogger(__name__)


class AgentPeers:
    """Finds the other workers of ``job`` through the agent at the socket ``path``."""

    def __init__(self, job: str, path: str, *, can_return: bool = True) -> None:
        self.job = job
        self._path = path
        self._can_return = can_return
        """Whether a new life of this worker could join the run."""

    async def follow(self, me: Member, port: int) -> AsyncIterator[RunPeers]:
        """Publish that ``me`` listens on ``port``; yield the others at every change.

        If the agent ends, the run goes on with the workers it knows, and nothing more
        is yielded. Raises the agent's error if it refuses this worker, and
        ``PeerUnreachable`` if there is no agent.
        """
        reader, writer = await self._connect()
        request = FollowRun(
            job=self.job,
            started_ms=me.started_ms,
            incarnation=me.incarnation,
            port=port,
            pid=os.getpid(),
            can_return=self._can_return,
        )
        try:
            writer.write(framing.pack(request))
            while True:
                reply = decode_reply(await framing.read(reader, AGENT))
                if isinstance(reply, RequestFailed):
                    raise reply.to_error()
                if not isinstance(reply, RunPeers):
                    raise InternalError(f"the agent answered FollowRun with {reply!r}")
                yield reply
        except PeerLost:
            log.warning("%s has ended; no more machines can join this one", AGENT)
            await asyncio.Event().wait()
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            with short_path(Path(self._path)) as path:
                return await asyncio.open_unix_connection(path)
        except OSError as exc:
            text = f"cannot be reached at {self._path} ({exc.strerror or exc})"
            raise PeerUnreachable(AGENT, text) from exc
