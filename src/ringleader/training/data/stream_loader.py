"""``StreamLoader``: the batches of this member's quanta, read from shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from torch.utils.data import default_collate

from ringleader.checkpoint import values
from ringleader.errors import ConfigError
from ringleader.training.data.assignment import StepTable
from ringleader.training.data.data_state import Quantum
from ringleader.training.data.intervals import split
from ringleader.training.data.loader import Loaded
from ringleader.training.data.progress import Progress
from ringleader.training.data.stream_state import IDLE, Read, Slot, encode_reads

_NOTHING: Final = object()


class ShardReader(Protocol):
    """One shard: iterated to its end, and resumable (torchdata's StatefulDataset).

    ``iter`` after ``load_state_dict`` must continue behind the last sample that was
    yielded before ``state_dict``. If it does, every sample is delivered exactly once;
    samples that it yields again are delivered again.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position."""


@dataclass(slots=True)
class _OpenShard:
    """A reader that was positioned here before."""

    samples: Iterator[Any]
    state: bytes
    """The state behind the last sample that was handed out."""
    following: Any = _NOTHING
    """A sample that was read to learn whether the shard is exhausted."""


class StreamLoader:
    """Loads the quanta of a step from shards. Used by the training thread only.

    A reader goes on if it is at the delivered position. Otherwise it is set to that
    position first: after a loss, or for a step that is done again.
    """

    def __init__(
        self,
        readers: Sequence[ShardReader],
        micro_batch: int,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self._readers = readers
        self._micro_batch = micro_batch
        self._collate = collate or default_collate
        self._initial = [values.encode(reader.state_dict()) for reader in readers]
        self._open: dict[int, _OpenShard] = {}
        self._slots: tuple[Slot, ...] = ()
        self._reads: dict[int, Read] = {}

    def start(self) -> None:
        """Nothing runs in the background: readers may read ahead themselves."""

    def expect(self, progress: Progress, table: StepTable) -> None:
        """Take the delivered position, from which the step reads."""
        assert progress.stream is not None
        self._slots = progress.stream.slots

    def load(self, quantum: Quantum) -> Loaded:
        """Return the batch of a quantum.

        The batch is None if there are no samples: its slot is idle, or its shard empty.
        """
        number = quantum.index
        samples, self._reads[number] = self._read(number, self._slots[number])
        intervals, _ = split(quantum.intervals, len(samples))
        found = replace(quantum, intervals=intervals)
        return Loaded(found, self._collate(samples) if samples else None)

    def reads(self, indices: Iterable[int]) -> bytes:
        """Return what these quanta read, for the sideband."""
        return encode_reads([self._reads[index] for index in indices])

    def _read(self, number: int, slot: Slot) -> tuple[list[Any], Read]:
        shard = slot.shard
        if shard == IDLE:
            return [], Read(number, 0, True, b"")
        opened = self._opened(shard, slot.state)
        samples: list[Any] = []
        while len(samples) < self._micro_batch and opened.following is not _NOTHING:
            samples.append(opened.following)
            if len(samples) == self._micro_batch:  # before the next one is read
                opened.state = values.encode(self._readers[shard].state_dict())
            opened.following = next(opened.samples, _NOTHING)
        is_exhausted = opened.following is _NOTHING
        if is_exhausted:
            del self._open[shard]
        state = b"" if is_exhausted else opened.state
        return samples, Read(number, len(samples), is_exhausted, state)

    def close(self) -> None:
        """Forget the positions of the readers."""
        self._open.clear()

    def _opened(self, shard: int, begin: bytes) -> _OpenShard:
        """Return the reader of a shard at the position ``begin``."""
        opened = self._open.get(shard)
        begin = begin or self._initial[shard]
        if opened is not None and opened.state == begin:
            return opened
        reader = self._readers[shard]
        try:
            reader.load_state_dict(values.decode(begin))
        except Exception as error:
            text = f"the reader of shard {shard} cannot continue: {error!r}"
            raise ConfigError(text) from error
        samples = iter(reader)
        opened = _OpenShard(samples, begin, next(samples, _NOTHING))
        self._open[shard] = opened
        return opened
