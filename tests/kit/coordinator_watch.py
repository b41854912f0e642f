"""Prints the workers at a coordinator, one line of JSON per change: for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path

from ringleader.coordinator.client.channel import CoordinatorChannel, JobNamespace
from ringleader.coordinator.client.peer_list import PeerList
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.errors import PeerError
from ringleader.identity import cluster_secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.storage.home import Home


async def watch(address: str, home: Path, *, plaintext: bool) -> None:
    cluster = cluster_secret.load(Home(home))
    assert cluster is not None
    pem = Credentials.issue(cluster, NodeKey.ephemeral()).pem()
    channel = CoordinatorChannel(address, None if plaintext else lambda: pem)
    namespace = JobNamespace(cluster.coordinator_key()).message()
    peers = PeerList(address)
    while True:
        with contextlib.suppress(PeerError):
            async for update in channel.watch(
                pb.WatchPeersRequest(namespace=namespace)
            ):
                peers.apply(update)
                workers = {rank: p.worker_id for rank, p in peers.peers.items()}
                line = {"time_s": time.monotonic(), "workers": workers}
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(
        watch(sys.argv[1], Path(sys.argv[2]), plaintext="plaintext" in sys.argv)
    )
