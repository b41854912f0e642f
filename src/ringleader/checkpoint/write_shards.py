"""Runs DCP's planner and our writer on all ranks.

It does what DCP's ``save`` does, but the plans travel as MessagePack instead of pickle.
"""

from __future__ import annotations

import secrets

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from ringleader.checkpoint import manifest as manifests
from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.dcp_writer import Writer
from ringleader.checkpoint.manifest import Manifest
from ringleader.checkpoint.planners import SavePlanner
from ringleader.checkpoint.save_messages import (
    decode_assignment,
    decode_plan,
    decode_results,
    encode_assignment,
    encode_plan,
    encode_results,
)
from ringleader.checkpoint.training_state import State

_SAVE = "save a checkpoint"


def write_shards(
    writer: Writer, state: State, exchange: ByteExchange, checkpoint_id: str = ""
) -> Manifest:
    """Write the shard of this rank; return the manifest, on all ranks.

    Raises ConfigError on all ranks if one of them cannot plan or write.
    """
    leads = exchange.rank == 0
    planner = SavePlanner()
    plans: list[SavePlan] = []

    def offer() -> bytes:
        planner.set_up_planner(state, is_coordinator=leads)
        plans.append(planner.create_local_plan())
        return encode_plan(plans[0])

    offers = together(exchange, _SAVE, offer)
    planned: list[Metadata] = []
    new_id = checkpoint_id or secrets.token_hex(8)

    def assign() -> bytes:
        if not leads:
            return b""
        local = [decode_plan(each) for each in offers]
        assigned, metadata = planner.create_global_plan(local)
        planned.append(metadata)
        return encode_assignment(new_id, local, assigned)

    assignment = together(exchange, _SAVE, assign)[0]

    def write() -> bytes:
        checkpoint_id, mine = decode_assignment(assignment, exchange.rank, plans[0])
        plan = planner.finish_plan(writer.addressed(mine, checkpoint_id, exchange.rank))
        return encode_results(writer.write_data(plan, planner).value())

    written = together(exchange, _SAVE, write)

    def finish() -> bytes:
        if not leads:
            return b""
        writer.finish(planned[0], [decode_results(each) for each in written])
        assert writer.manifest is not None
        return manifests.encode(writer.manifest)

    return manifests.decode(together(exchange, _SAVE, finish)[0])
