"""The data of a run: a dataset with a length, or a list of shard readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, TypeGuard, cast

from torch.utils.data import Dataset

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.loader import Loader
from ringleader.training.data.quantum_loader import QuantumLoader
from ringleader.training.data.stream_loader import ShardReader, StreamLoader
from ringleader.training.data.stream_state import StreamSpec

Data = Dataset[Any] | Sequence[ShardReader]


def data_spec(
    data: Data,
    *,
    global_batch: int,
    micro_batch: int,
    epochs: int | None,
    shuffle: bool,
    seed: int,
) -> DataSpec:
    """Return the spec of the data. Raises ConfigError if it cannot be used."""
    if _is_stream(data):
        if not 1 <= micro_batch <= global_batch or global_batch % micro_batch:
            raise ConfigError(
                f"elastic: global_batch={global_batch} of streamed data must be a "
                f"multiple of micro_batch={micro_batch}"
            )
        stream = StreamSpec(
            num_shards=len(data),
            num_slots=global_batch // micro_batch,
            seed=seed,
            shuffle=shuffle,
        )
        return DataSpec.of_stream(stream, micro_batch, epochs)
    if not isinstance(data, Sized):
        raise ConfigError(
            "elastic: the dataset has no length; give a list of shard readers with "
            "state_dict and load_state_dict instead of an iterable dataset"
        )
    return DataSpec(
        num_samples=len(data),
        global_batch=global_batch,
        micro_batch=micro_batch,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
    )


def make_loader(
    data: Data,
    spec: DataSpec,
    node: NodeId,
    collate: Callable[[list[Any]], Any] | None,
    options: Mapping[str, Any],
) -> Loader:
    """Return the loader of ``node``; ``options`` are those of torch's DataLoader."""
    if _is_stream(data):
        if options:
            names = ", ".join(options)
            raise ConfigError(
                f"elastic: loader={{{names}}} cannot be used with shard readers"
            )
        return StreamLoader(data, spec.micro_batch, collate)
    given = {"collate_fn": collate} if collate is not None else {}
    return QuantumLoader(cast("Dataset[Any]", data), spec, node, **options, **given)


def _is_stream(data: Data) -> TypeGuard[Sequence[ShardReader]]:
    """Return whether ``data`` is a list of readers, and not one of samples."""
    names = ("__iter__", "state_dict", "load_state_dict")
    return (
        isinstance(data, list | tuple)
        and len(data) > 0
        and all(hasattr(each, name) for each in data for name in names)
    )
