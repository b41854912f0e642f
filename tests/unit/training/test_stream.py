"""Streamed data: every sample of every shard once, whoever is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ringleader.checkpoint import values
from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.training.data.assignment import OnLoss, StepTable
from ringleader.training.data.balance import Report
from ringleader.training.data.data_state import DataSpec, is_over, quanta
from ringleader.training.data.progress import (
    Progress,
    delivered,
    quanta_of,
    table_after_loss,
    table_of,
)
from ringleader.training.data.stream_loader import StreamLoader
from ringleader.training.data.stream_state import (
    Read,
    StreamSpec,
    StreamState,
    advance_stream,
    decode_reads,
    encode_reads,
    first_state,
)
from ringleader.training.elastic import start_run
from ringleader.training.options import Options

NODES = [NodeId(letter * 52) for letter in "abc"]


class Numbers:
    """A shard of numbered samples."""

    def __init__(self, shard: int, size: int) -> None:
        self.shard = shard
        self.size = size
        self.position = 0
        self.restored = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self.position < self.size:
            self.position += 1
            yield self.shard, self.position - 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.restored += 1


class Machine:
    """One member with readers of its own."""

    def __init__(self, spec: DataSpec, sizes: list[int]) -> None:
        assert spec.stream is not None
        self.spec, self.stream = spec, spec.stream
        self.readers = [Numbers(shard, size) for shard, size in enumerate(sizes)]
        self.loader = StreamLoader(self.readers, spec.micro_batch, collate=list)

    def compute(
        self, progress: Progress, node: NodeId, table: StepTable
    ) -> tuple[list[tuple[int, int]], list[Read]]:
        self.loader.expect(progress, table)
        samples: list[tuple[int, int]] = []
        for quantum in quanta_of(self.spec, progress, table, node):
            found, batch = self.loader.load(quantum)
            assert found.num_samples == len(batch or [])
            samples += batch or []
        data = self.loader.reads(table.quanta[node])
        return samples, decode_reads(data, self.stream, self.spec.micro_batch)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(["refill", "shrink"]))
def test_every_sample_of_every_shard_is_delivered_once(
    seed: int, on_loss: OnLoss
) -> None:
    chance = random.Random(seed)
    slots = chance.randint(1, 4)
    sizes = [chance.randint(0, 9) for _ in range(chance.randint(slots, 9))]
    stream = StreamSpec(num_shards=len(sizes), num_slots=slots, seed=seed)
    spec = DataSpec.of_stream(stream, micro_batch=chance.randint(1, 4), epochs=2)
    machines = {node: Machine(spec, sizes) for node in NODES}
    progress, members = Progress.first(spec), NODES
    seen = Counter[tuple[int, int, int]]()
    for version in range(1, 200):
        if is_over(spec, progress.state):
            break
        members = chance.sample(NODES, chance.randint(1, 3))
        table = table_of(spec, progress, members)
        results = {m: machines[m].compute(progress, m, table) for m in members}
        if chance.random() < 0.4:  # some are lost after they have read
            members = members[: chance.randint(1, len(members))]
            kept = {m: table.quanta[m] for m in members}
            table = table_after_loss(spec, progress, members, kept, on_loss)
            results = {m: machines[m].compute(progress, m, table) for m in members}
        for samples, _ in results.values():
            seen.update((progress.state.epoch, *sample) for sample in samples)
        reads = [read for _, found in results.values() for read in found]
        reports = {m: Report(chance.uniform(1, 3)) for m in members}
        copy = Progress.from_plain(
            values.decode(values.encode(progress.to_plain())), spec
        )
        progress = delivered(spec, progress, version, table, reports, reads)
        assert delivered(spec, copy, version, table, reports, reads) == progress
    expected = [(shard, i) for shard, size in enumerate(sizes) for i in range(size)]
    assert seen == Counter((e, *sample) for e, sample in product(range(2), expected))
    assert progress.state.samples == 2 * sum(sizes)


def test_a_reader_goes_on_without_being_set_again() -> None:
    stream = StreamSpec(num_shards=3, num_slots=2, shuffle=False)
    spec = DataSpec.of_stream(stream, micro_batch=2)
    machine, progress = Machine(spec, [6, 5, 3]), Progress.first(spec)
    steps = []
    for version in range(1, 6):
        table = table_of(spec, progress, [NODES[0]])
        samples, reads = machine.compute(progress, NODES[0], table)
        steps.append(samples)
        progress = delivered(spec, progress, version, table, {}, reads)
    assert steps == [
        [(0, 0), (0, 1), (1, 0), (1, 1)],
        [(0, 2), (0, 3), (1, 2), (1, 3)],
        [(0, 4), (0, 5), (1, 4)],
        [(2, 0), (2, 1)],
        [(2, 2)],
    ]
    assert is_over(spec, progress.state)
    assert quanta(spec, progress.state) == ()
    assert [reader.restored for reader in machine.readers] == [1, 1, 1]


@pytest.mark.parametrize("low_comm", [None, "diloco:2"])
def test_a_step_of_empty_shards_changes_nothing(low_comm: str | None) -> None:
    model = nn.Linear(1, 1)
    before = [p.detach().clone() for p in model.parameters()]
    readers: Any = [Numbers(shard, 0) for shard in range(8)]
    options = Options(low_comm=low_comm)
    spec = DataSpec.of_stream(StreamSpec(num_shards=8, num_slots=4), micro_batch=2)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    run = start_run(model, sgd, readers, spec, options, None)
    assert list(run) == []
    assert run.version == 2
    assert all(map(torch.equal, model.parameters(), before))


def test_states_from_the_network_are_checked() -> None:
    stream = StreamSpec(num_shards=4, num_slots=2)
    reads = [Read(0, 3, False, b"abc"), Read(1, 1, True, b"")]
    data = encode_reads(reads)
    assert decode_reads(data, stream, 3) == reads
    for wrong in (data[:-1], data[:5], encode_reads([Read(2, 1, True, b"")])):
        with pytest.raises(ConfigError):
            decode_reads(wrong, stream, 3)
    with pytest.raises(ConfigError):
        decode_reads(data, stream, 2)
    with pytest.raises(ConfigError, match="a position, not data"):
        encode_reads([Read(0, 1, False, bytes(70_000))])
    with pytest.raises(ConfigError, match="more shards"):
        StreamSpec(num_shards=3, num_slots=4)


def test_positions_that_do_not_fit_are_refused() -> None:
    stream = StreamSpec(num_shards=4, num_slots=2)
    plain = advance_stream(
        stream, first_state(stream), [Read(0, 1, False, b"x")]
    ).to_plain()
    assert StreamState.from_plain(plain, stream).slots[0].state == b"x"
    for change in (
        {"slots": plain["slots"][:1]},
        {"slots": [[1, ""], [1, ""]]},
        {"slots": [[1, ""], [4, ""]]},
        {"epoch": -1},
        {"num_opened": 5},
        {"slots": 3},
    ):
        with pytest.raises(ConfigError):
            StreamState.from_plain({**plain, **change}, stream)


def test_a_reader_that_cannot_continue_is_named() -> None:
    class Broken(Numbers):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("position")

    spec = DataSpec.of_stream(StreamSpec(num_shards=1, num_slots=1), micro_batch=2)
    loader = StreamLoader([Broken(0, 3)], 2)
    progress = Progress.first(spec)
    loader.expect(progress, table_of(spec, progress, NODES[:1]))
    with pytest.raises(ConfigError, match="shard 0 cannot continue"):
        loader.load(quanta(spec, progress.state)[0])
