"""PyTorch's distributed features on our backend, compared with one process.

Scenarios are functions ``(rank, size)`` in scenario_*.py. They run in worlds of real
processes that live through the module; every scenario is a test for each size. With
RINGLEADER_TEST_BACKEND=gloo all of them run on Gloo: a failure there is the scenario's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.scenario_worlds import (
    SCENARIO_LIMIT_S,
    ScenarioCall,
    ScenarioServer,
    World,
    backend,
)

HERE = Path(__file__).parent


SCHEMES = {2: "file", 3: "tcp", 4: "env"}
"""Rendezvous of the world of each size."""

SIZES = {
    "ddp_compiled": (3,),
    "hsdp": (2, 3, 4),
    "fsdp2_with_tensor_parallel": (4,),
    "dtensor_on_a_2d_mesh": (2, 3, 4),
    "device_mesh": (2, 3, 4),
    "new_subgroups": (2, 3, 4),
    "parallel_ddp": (2, 3),
    "parallel_fsdp": (4,),
    "parallel_fsdp_hybrid": (4,),
    "parallel_memory": (4,),
    "parallel_pipeline": (2, 3, 4),
    "parallel_pipeline_checkpoint": (3,),
    "parallel_pipeline_of_replicas": (4,),
    "parallel_pipeline_of_shards": (4,),
    "parallel_pipeline_plan": (3,),
    "parallel_pipeline_refusals": (3,),
    "parallel_shares": (3,),
    "parallel_tensor": (2, 3),
    "parallel_two_dimensions": (4,),
}
"""Sizes of scenarios that need, or gain from, four ranks, or take long; others run on 2
and 3, those of ``parallelize`` on 3."""

SHARED_BUCKETS = (
    "ddp_shared_buckets",
    "ddp_shared_buckets_have_the_bits_of_others",
    "ddp_shared_buckets_of_ranks_that_cannot_look",
    "ddp_shared_buckets_of_two_models",
    "ddp_shared_buckets_without_rebuilding",
    "ddp_shared_buckets_without_room_on_one_rank",
)
CALLING_CALLBACKS = (
    "a_callback_that_fails",
    "callbacks_of_one_group_that_use_another",
    "callbacks_that_only_begin_operations",
    "callbacks_that_reduce",
    "ddp_powersgd_hook_in_several_buckets",
)
GLOO_CANNOT = {
    "checkpoint_async_save": "Gloo: aborts if a save and the training share a group",
    "all_to_all_of_uneven_lists": "Gloo: alltoall wants equal sizes",
    "coalescing_manager_of_a_device": "Gloo: no _start_coalescing",
    **dict.fromkeys(SHARED_BUCKETS, "Gloo: no buckets in shared memory"),
    **dict.fromkeys(CALLING_CALLBACKS, "Gloo: other sums, or waits until its timeout"),
    "profiled_ddp": "Gloo: other names",
    "profiled_operations": "Gloo: other names",
    "traced_steps": "Gloo: no operation of ours to be traced",
    "means_of_integers": "Gloo: raises for the mean of integers",
}


def scenarios() -> Iterator[tuple[str, str]]:
    """Module and name of each, read and not imported: FSDP alone takes seconds."""
    for path in sorted(HERE.glob("scenario_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and is_scenario(node):
                yield f"tests.torch.{path.stem}", node.name


def is_scenario(function: ast.FunctionDef) -> bool:
    """Return whether it is a ``(rank, size) -> None``."""
    names = [arg.arg for arg in function.args.args]
    returns = function.returns
    is_check = isinstance(returns, ast.Constant) and returns.value is None
    return names == ["rank", "size"] and is_check


SCENARIOS = {name: module for module, name in scenarios()}
COMPILED = "ddp_compiled"
"""Compiling takes as long as all other scenarios together."""
LIMITS_S = {COMPILED: 400.0, "parallel_two_dimensions": 400.0}
PARALLEL = "parallel_"
QUICK_PARALLEL = (
    "parallel_ddp",
    "parallel_other_model_on_one_rank",
    "parallel_pipeline_options",
)
"""Of ``parallelize``; the other scenarios take longer."""


def sizes_of(name: str) -> tuple[int, ...]:
    return SIZES.get(name, (3,) if name.startswith(PARALLEL) else (2, 3))


def is_slow(name: str, size: int, sizes: tuple[int, ...]) -> bool:
    """More ranks show what fewer do, but for shortcuts; ``make test-all`` runs all."""
    is_long = name.startswith(PARALLEL) and name not in QUICK_PARALLEL
    return name == COMPILED or is_long or size < max(sizes)


CASES = [
    pytest.param(
        name, size, marks=pytest.mark.slow if is_slow(name, size, sizes) else ()
    )
    for name in SCENARIOS
    for sizes in [sizes_of(name)]
    for size in sizes
]


@pytest.fixture(scope="module")
def worlds(scenario_server: ScenarioServer) -> Iterator[dict[int, World]]:
    """One world of each size, formed."""
    made = {
        size: World(scenario_server, size, scheme) for size, scheme in SCHEMES.items()
    }
    for world in made.values():
        world.open()
    yield made
    for world in made.values():
        world.end()


@pytest.mark.parametrize(("name", "size"), CASES)
def test_feature(worlds: dict[int, World], name: str, size: int) -> None:
    if backend() == "gloo" and name in GLOO_CANNOT:
        pytest.skip(GLOO_CANNOT[name])
    limit_s = LIMITS_S.get(name, SCENARIO_LIMIT_S)
    call = ScenarioCall(module=SCENARIOS[name], name=name, limit_s=limit_s)
    trouble = worlds[size].play(call)
    if trouble:
        pytest.fail(trouble, pytrace=False)


def test_a_checkpoint_moves_from_3_to_2_to_4_ranks(
    worlds: dict[int, World], tmp_path: Path
) -> None:
    at_3, at_2 = str(tmp_path / "at_3"), str(tmp_path / "at_2")
    steps = [
        (3, "save_trained", (at_3,)),
        (2, "load_trained", (at_3, at_2)),
        (4, "load_trained", (at_2, None)),
    ]
    for size, name, args in steps:
        call = ScenarioCall(
            module="tests.torch.scenario_checkpoint", name=name, args=args
        )
        trouble = worlds[size].play(call)
        if trouble:
            pytest.fail(f"{name} with {size} ranks\n{trouble}", pytrace=False)


@pytest.mark.slow
def test_a_checkpoint_without_a_shared_disk_moves_from_3_to_2_to_5_ranks(
    worlds: dict[int, World], scenario_server: ScenarioServer, tmp_path: Path
) -> None:
    """FT-13: every world loses a machine of the one before; FSDP, then DDP, then one
    file. Values are exact: each chunk is where it belongs, nothing is concatenated or
    left out, sizes divide by nothing."""
    module = "tests.torch.scenario_checkpoint_safety"
    folder = str(tmp_path)
    steps = [
        (3, "save_sharded", (folder,)),
        (2, "load_sharded", (folder, 1, 2)),
        (5, "load_sharded", (folder, 2, 1)),
        (3, "load_replicated", (folder,)),
    ]
    five = World(scenario_server, 5, "tcp")
    five.open()
    try:
        for size, name, args in steps:
            world = worlds.get(size, five)
            trouble = world.play(ScenarioCall(module=module, name=name, args=args))
            if trouble:
                pytest.fail(f"{name} with {size} ranks\n{trouble}", pytrace=False)
    finally:
        five.end()


@pytest.mark.parametrize("size", SCHEMES)
def test_every_rank_leaves_by_itself(worlds: dict[int, World], size: int) -> None:
    assert worlds[size].leave() == [0] * size
