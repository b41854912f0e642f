"""DCP's planners, with values encoded by ``values.py`` where DCP pickles them."""

from __future__ import annotations

import io

from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
)
from torch.distributed.checkpoint.planner import ReadItem, WriteItem, WriteItemType

from ringleader.checkpoint import values


class SavePlanner(DefaultSavePlanner):
    """Plans which rank saves what; replicated tensors are spread over the ranks."""

    def transform_object(self, write_item: WriteItem, object: object) -> object:  # noqa: A002  # torch's name
        """Encode what is not a tensor."""
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(values.encode(object))
        return object


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
