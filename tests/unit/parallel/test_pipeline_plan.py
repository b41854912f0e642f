"""The plan of a pipeline: pure functions on measured layers and machines."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from ringleader.errors import ConfigError
from ringleader.parallel.plan.data_plan import DataPlan, choose_shares
from ringleader.parallel.plan.data_plan import report as data_report
from ringleader.parallel.plan.memory import rank_need
from ringleader.parallel.plan.partition import equal_counts, partition
from ringleader.parallel.plan.pipeline_plan import (
    PipelinePlan,
    choose_plan,
    fixed_plan,
)
from ringleader.parallel.plan.profile import LayerProfile, MachineProfile, slowest_of
from ringleader.parallel.plan.report import report
from ringleader.parallel.plan.schedule import Schedule, ScheduleName
from ringleader.parallel.plan.shares import batch_weights

MIB = 1 << 20


def layer(name: str = "layer", weight: int = MIB, kept: int = MIB) -> LayerProfile:
    return LayerProfile(name, weight, weight, 2 * weight, kept, 1024, 1024)


def machine(
    *seconds: float, name: str = "box", memory: int = 1 << 40
) -> MachineProfile:
    return MachineProfile(name=name, memory_bytes=memory, layer_seconds=seconds)


def schedule(
    ranks: int,
    name: ScheduleName = ScheduleName.ONE_F_ONE_B,
    microbatches: int = 8,
    stages_per_rank: int = 1,
) -> Schedule:
    return Schedule(
        name=name,
        ranks=ranks,
        microbatches=microbatches,
        stages_per_rank=stages_per_rank,
    )


def plan_for(*machines: MachineProfile) -> PipelinePlan:
    layers = [layer() for _ in machines[0].layer_seconds]
    return choose_plan(layers, machines, schedule(len(machines)))


def test_a_machine_of_twice_the_speed_gets_twice_the_layers() -> None:
    plan = plan_for(machine(*[0.01] * 12), machine(*[0.02] * 12))
    assert plan.counts == (8, 4)
    assert plan.equal_split().step_seconds() / plan.step_seconds() > 1.4


def test_the_order_of_the_machines_is_that_of_the_ranks() -> None:
    plan = plan_for(machine(*[0.02] * 12), machine(*[0.01] * 12))
    assert plan.counts == (4, 8)


def test_no_other_division_has_a_faster_slowest_stage() -> None:
    """Compared with all divisions of random layers on random machines."""
    chance = random.Random(17)
    for _ in range(50):
        count, stages = chance.randint(3, 9), chance.randint(2, 3)
        machines = [
            machine(*[chance.uniform(0.1, 1) for _ in range(count)])
            for _ in range(stages)
        ]

        def seconds(stage: int, begin: int, end: int) -> float:
            return machines[stage].seconds(begin, end)  # noqa: B023 - used at once

        divisions = []
        for cuts in combinations(range(1, count), stages - 1):
            ends = [0, *cuts, count]
            divisions.append(
                max(seconds(i, ends[i], ends[i + 1]) for i in range(stages))
            )
        found = partition(count, stages, seconds)
        assert found is not None
        assert sum(found) == count
        begin, worst = 0, 0.0
        for stage, size in enumerate(found):
            worst = max(worst, seconds(stage, begin, begin + size))
            begin += size
        assert worst == min(divisions)


def test_a_fast_machine_with_little_memory_gets_what_fits() -> None:
    layers = [layer(weight=MIB, kept=0) for _ in range(6)]  # 4 MiB each with Adam
    machines = [machine(*[0.1] * 6, memory=9 * MIB), machine(*[1.0] * 6)]
    plan = choose_plan(layers, machines, schedule(2))
    assert plan.counts == (2, 4)
    assert not plan.lacks()


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    layers = [layer(f"l{i}", weight=3 * MIB, kept=MIB) for i in range(4)]
    machines = [
        machine(*[0.1] * 4, name="desk", memory=30 * MIB),
        machine(*[0.1] * 4, name="pi", memory=13 * MIB),
    ]
    with pytest.raises(ConfigError) as refusal:
        choose_plan(layers, machines, schedule(2))
    text = str(refusal.value)
    assert "the model does not fit" in text
    # 3 MiB of parameters, as many gradients, twice for Adam, one live micro-batch
    assert (
        "rank 1 (pi), layer 3: needs 13.0 MiB = parameters 3.0 MiB + gradients 3.0 MiB "
        "+ optimizer 6.0 MiB + activations 1.0 MiB"
    ) in text
    assert "rank 0 (desk), layers 0 to 2: needs 42.0 MiB" in text
    assert "has 30.0 MiB; 12.0 MiB too little" in text


def test_1f1b_keeps_a_micro_batch_per_stage_and_gpipe_all() -> None:
    layers = [layer(weight=0, kept=MIB) for _ in range(3)]
    spans = [(1, 2)]
    gpipe = rank_need(layers, spans, schedule(3, ScheduleName.GPIPE, 12), 1)
    early = rank_need(layers, spans, schedule(3, microbatches=12), 1)
    buffers = 12 * 2 * 1024
    assert gpipe.activations == 12 * MIB + buffers
    assert early.activations == 2 * MIB + buffers


def test_an_interleaved_plan_shares_out_like_a_plain_one() -> None:
    layers = [layer() for _ in range(12)]
    machines = [machine(*[0.01] * 12), machine(*[0.02] * 12)]
    looped = schedule(2, ScheduleName.INTERLEAVED, 8, 2)
    plan = choose_plan(layers, machines, looped)
    assert plan.counts == (4, 2, 4, 2)
    assert plan.spans_of(1) == [(4, 6), (10, 12)]


@pytest.mark.parametrize(
    ("name", "microbatches", "stages_per_rank", "words"),
    [
        (ScheduleName.ONE_F_ONE_B, 2, 1, "at least one for each of the 3 stages"),
        (ScheduleName.GPIPE, 0, 1, "at least 1"),
        (ScheduleName.GPIPE, 4, 2, "use schedule='interleaved'"),
        (ScheduleName.INTERLEAVED, 6, 1, "stages_per_rank of 2 or more"),
        (ScheduleName.INTERLEAVED, 7, 2, "a multiple of the 3 ranks"),
    ],
)
def test_a_schedule_that_torch_cannot_run_is_refused(
    name: ScheduleName, microbatches: int, stages_per_rank: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        schedule(3, name, microbatches, stages_per_rank).check()


def test_a_given_split_is_checked() -> None:
    layers = [layer() for _ in range(5)]
    machines = [machine(*[0.0] * 5), machine(*[0.0] * 5)]
    assert fixed_plan(layers, machines, schedule(2), [1, 4]).counts == (1, 4)
    for wrong in ([5], [0, 5], [2, 2], [1, 1, 3]):
        with pytest.raises(ConfigError, match="whose sum is 5"):
            fixed_plan(layers, machines, schedule(2), wrong)


def test_too_few_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 layers for 3 stages"):
        plan_for(*[machine(0.1, 0.1)] * 3)


def test_replicas_wait_for_the_slowest_and_fit_on_the_smallest() -> None:
    both = slowest_of(
        [machine(1.0, 4.0, name="a", memory=7), machine(2.0, 3.0, name="b", memory=9)]
    )
    assert both == machine(2.0, 4.0, name="a + b", memory=7)


def test_the_report_says_who_gets_what_and_why() -> None:
    fast, slow = machine(*[0.01] * 12, name="desk"), machine(*[0.02] * 12, name="pi")
    text = report(plan_for(fast, slow), microbatch=16)
    assert "12 layers over 2 ranks; 1f1b, 8 micro-batches of 16" in text
    assert "desk     2.00x  layers 0 to 7   67%" in text
    assert "pi       1.00x  layers 8 to 11  33%" in text
    assert "120 ms on rank 0, 240 ms on rank 1" in text
    assert "720 ms per step" in text
    assert "equal numbers of layers [6, 6], 1.42 times as long" in text


def test_a_machine_that_holds_up_the_others_is_named() -> None:
    fast = machine(*[0.01] * 6, name="desk")
    slow = machine(*[1.0] * 6, name="pi")
    text = report(plan_for(fast, slow, fast), microbatch=4)
    assert "Without rank 1 (pi) a step would take 270 ms" in text
    assert "Without" not in report(plan_for(fast, fast), microbatch=4)


def whole_model(memory: int = 1 << 40, shards: int = 1) -> DataPlan:
    """Machines of speed 1:3, the second with this memory; 4 MiB, 1 MiB per row."""
    return DataPlan(
        strategy="fsdp" if shards > 1 else "ddp",
        machines=(machine(3.0, name="pi"), machine(1.0, name="desk", memory=memory)),
        model=layer(kept=10 * MIB),
        measured_rows=10,
        batch=40,
        microbatches=2,
        shards=shards,
        parameter_shards=shards,
    )


def test_the_rows_of_a_batch_follow_speed_and_memory() -> None:
    plan = choose_shares(whole_model())
    assert plan.weights == (0.25, 0.75)
    assert plan.need_of(1).total == (4 + 15) * MIB, "30 rows in two micro-batches"
    text = data_report(plan)
    assert "pi       1.00x  10.0  25%" in text
    assert "desk     3.00x  30.0  75%" in text
    assert "Predicted: 3 s per step" in text
    assert "equal batches would take 6 s, 2.00 times as long" in text

    small = choose_shares(whole_model(memory=12 * MIB))
    assert small.weights == (0.6, 0.4), "16 rows in micro-batches of 8 MiB"
    assert "equal batches do not fit in the memory of rank 1" in data_report(small)


def test_a_model_that_no_row_fits_beside_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ConfigError) as refusal:
        choose_shares(whole_model(memory=4 * MIB))
    assert (
        "data rank 1 (desk) needs 4.5 MiB = parameters 1.0 MiB + gradients 1.0 MiB + "
        "optimizer 2.0 MiB + activations 512.0 KiB; has 4.0 MiB; 512.0 KiB too little"
    ) in str(refusal.value)
    with pytest.raises(ConfigError, match="Torch divides parameters evenly"):
        choose_shares(whole_model(memory=2 * MIB, shards=2))


def test_the_predicted_step_fills_and_drains_once() -> None:
    assert schedule(2, microbatches=4).step_seconds([3.0, 1.0]) == 4 * 3 + 1
    looped = schedule(2, ScheduleName.INTERLEAVED, 4, 2)
    assert looped.step_seconds([1.0, 1.0, 1.0, 1.0]) == 4 * 2 + 1


def test_equal_counts_give_the_rest_to_the_first() -> None:
    assert equal_counts(8, 3) == [3, 3, 2]


def test_batches_are_shared_out_by_speed_within_memory() -> None:
    assert batch_weights([1.0, 0.5, 0.5], [99, 99, 99], 50) == [0.2, 0.4, 0.4]
    assert batch_weights([1.0, 0.5, 0.5], [99, 10, 99], 50) == pytest.approx(
        [0.8 / 3, 0.2, 1.6 / 3]
    )
    with pytest.raises(ConfigError, match="memory for 10 \\+ 20 samples"):
        batch_weights([1.0, 0.5], [10, 20], 31)
