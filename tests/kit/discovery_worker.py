"""A node that only discovers: obeys lines of JSON on stdin, tells events on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from ringleader.discovery.mdns import Mdns, MdnsConfig
from ringleader.discovery.multicast_check import check_multicast
from ringleader.discovery.sighting import Sighting, SightingConfig
from ringleader.topology.interfaces import choose_interfaces, list_interfaces


def say(event: str, **facts: object) -> None:
    """Tell the test; times are of the clock that all hosts of a LAN share."""
    line = {"event": event, "at_s": time.monotonic(), **facts}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def saw(sighting: Sighting) -> None:
    say("saw", label=sighting.label, addresses=sighting.addresses, port=sighting.port)


class Worker:
    """One command at a time."""

    def __init__(self) -> None:
        self.mdns: Mdns | None = None
        self.wanted: list[str] | None = None

    async def start(self, order: dict[str, Any]) -> None:
        life = SightingConfig(lifetime_s=order.get("lifetime_s", 120.0))
        config = MdnsConfig(
            first_queries_s=tuple(
                order.get("first_queries_s", MdnsConfig().first_queries_s)
            ),
            query_every_s=order.get("query_every_s", 30.0),
            query_seeking_s=order.get(
                "query_seeking_s", order.get("query_every_s", 5.0)
            ),
            sightings=life,
        )
        key = bytes.fromhex(order["key"])
        self.wanted = order.get("wanted")
        self.mdns = Mdns(port=order["port"], key=key, on_sighting=saw, config=config)
        start_s = time.monotonic()
        await self.update(order, started_s=start_s)

    async def update(self, _: dict[str, Any], **facts: object) -> None:
        assert self.mdns is not None
        chosen, refused = choose_interfaces(list_interfaces(), self.wanted)
        trouble = await self.mdns.update(chosen)
        say(
            "updated",
            trouble=trouble and trouble.why.value,
            text=trouble and str(trouble),
            labels=self.mdns.labels,
            chosen=[interface.name for interface in chosen],
            refused={interface.name: why for interface, why in refused},
            **facts,
        )

    async def seek(self, _: dict[str, Any]) -> None:
        assert self.mdns is not None
        self.mdns.seek()

    async def list(self, _: dict[str, Any]) -> None:
        assert self.mdns is not None
        sightings = self.mdns.sightings
        labels = [sighting.label for sighting in sightings.all()]
        refused = {why.name: count for why, count in sightings.refused.items()}
        say("listed", labels=labels, refused=refused, num_foreign=sightings.num_foreign)

    async def stop(self, _: dict[str, Any]) -> None:
        if self.mdns is not None:
            await self.mdns.stop()
        say("stopped")

    async def probe(self, order: dict[str, Any]) -> None:
        chosen, _ = choose_interfaces(list_interfaces(), order.get("wanted"))
        found = await asyncio.to_thread(  # a node of ours answers meanwhile
            check_multicast,
            chosen[0],
            key=bytes.fromhex(order["key"]),
            call=order.get("call", ()),
            version=order.get("version"),
        )
        say(
            "probed",
            loops_back=found.loops_back,
            heard=sorted(found.heard),
            answered=sorted(found.answered),
            answered_directly=sorted(found.answered_directly),
            members=sorted(seen.addresses for seen in found.members),
            strangers=sorted(seen.addresses for seen in found.strangers),
            trouble=found.trouble and found.trouble.why.value,
        )


async def main() -> None:
    """Obey until stdin ends."""
    loop, reader, worker = asyncio.get_running_loop(), asyncio.StreamReader(), Worker()
    protocol = asyncio.StreamReaderProtocol(reader)
    await loop.connect_read_pipe(lambda: protocol, sys.stdin)
    say("ready")
    while line := await reader.readline():
        order = json.loads(line)
        await getattr(worker, order["do"])(order)


if __name__ == "__main__":
    asyncio.run(main())
