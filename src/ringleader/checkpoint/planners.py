"""DCP's planners, with values encoded by ``values.py`` where DCP pickles them."""

from __future__ import annotations

import dataclasses
import io

from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    ReadItem,
    SavePlan,
    WriteItem,
    WriteItemType,
)

from ringleader.checkpoint import values

_SMALL_BYTES = 1 << 18
"""65,536 channels of a BatchNorm."""


class SavePlanner(DefaultSavePlanner):
    """Plans which rank saves what; large replicated tensors are spread over the ranks.

    Small ones come from the lowest rank that has them, as do the buffers of a model in
    DDP: statistics of BatchNorm differ between ranks, and DDP uses those of rank 0.
    """

    def create_global_plan(
        self, all_plans: list[SavePlan]
    ) -> tuple[list[SavePlan], Metadata]:
        """Plan for all ranks, on the coordinator."""
        planned: set[MetadataIndex] = set()
        plans: list[SavePlan] = []
        for plan in all_plans:
            items = [
                item
                for item in plan.items
                if not (_is_small(item) and item.index in planned)
            ]
            planned |= {item.index for item in items}
            plans.append(dataclasses.replace(plan, items=items))
        return super().create_global_plan(plans)

    def transform_object(self, write_item: WriteItem, object: object) -> object:  # noqa: A002  # torch's name
        """Encode what is not a tensor."""
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(values.encode(object))
        return object


def _is_small(item: WriteItem) -> bool:
    return (item.tensor_storage_size() or 0) <= _SMALL_BYTES


class LoadPlanner(DefaultLoadPlanner):
    """Plans which rank reads what; the shards may have been cut in another way."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Decode what is not a tensor, and put it at its place."""
        name = read_item.dest_index.fqn
        set_element(
            self.original_state_dict,
            self.mappings[name],
            values.decode(value.getvalue()),
        )
