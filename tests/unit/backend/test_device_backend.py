"""torch finds a backend for every device of our groups, whatever asks for it."""

from __future__ import annotations

import gc
import inspect
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from ringleader.backend.device_backend import DeviceBackend, can_subclass
from ringleader.backend.process_group import RingleaderGroup

c10d: Any = _distributed_c10d  # its stubs lag behind
CPU = torch.device("cpu")

TRAMPOLINES = ("py/PyProcessGroup.hpp", "PyProcessGroup.hpp")
"""Where releases of torch keep the methods that C++ looks up in a Python group."""

NOT_OURS = {
    "get_reconfigure_handle",
    "mergeRemoteGroup",
    "reconfigure",
    "splitGroup",
}
"""Methods of groups that change their size or are split in place: torch refuses them
with an error of its own."""

needs_backends = pytest.mark.skipif(
    not can_subclass(), reason="this torch has no backends in Python"
)


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("ringleader", store=c10d.HashStore(), rank=0, world_size=1)
    try:
        yield dist.distributed_c10d._get_default_group()
    finally:
        dist.destroy_process_group()


def properties(thing: object, kind: type) -> dict[str, Any]:
    """What every property of ``kind`` answers for ``thing``; the type of an error."""
    answers: dict[str, Any] = {}
    for name, value in inspect.getmembers(kind):
        if isinstance(value, property):
            try:
                answers[name] = getattr(thing, name)
            except Exception as error:  # noqa: BLE001 - the test compares them
                answers[name] = type(error)
    return answers


def hooks() -> dict[str, Any]:
    """Everything of this torch that can be attached to a group."""
    found = {name: getattr(c10d, name) for name in dir(c10d) if name.endswith("Hook")}
    return {name: kind for name, kind in found.items() if hasattr(kind, "attach")}


def test_every_hook_that_torch_has_attaches_to_our_group(group: Any) -> None:  # noqa: ANN401
    for name, kind in hooks().items():
        wants_ranks = "ranks" in (inspect.getdoc(kind.attach) or "")
        attached = kind.attach(group, [0]) if wants_ranks else kind.attach(group)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1, 1], name
        del attached


def test_our_devices_are_known_and_have_a_default(group: Any) -> None:  # noqa: ANN401
    assert CPU in group._device_types
    assert group._get_backend(CPU) is group


@needs_backends
def test_torchs_own_look_up_finds_our_backend(group: Any) -> None:  # noqa: ANN401
    found: Any = dist.ProcessGroup._get_backend(group, CPU)
    assert isinstance(found, DeviceBackend)
    assert found.name() == "ringleader"
    assert not found.supports_splitting
    get_backend_impl: Any = vars(dist.distributed_c10d)["get_backend_impl"]
    assert get_backend_impl().name() == "ringleader"


def test_every_property_that_torch_gives_a_group_can_be_read(group: Any) -> None:  # noqa: ANN401
    """torch's own may ask our backend, and that one torch's own again."""
    answers = properties(group, dist.ProcessGroup)
    assert answers["group_name"] == group.getGroupName()
    assert RecursionError not in answers.values(), answers
    assert not [n for n in answers if "supports_" in n and answers[n] is not False]


@needs_backends
def test_every_property_that_torch_gives_a_backend_can_be_read(group: Any) -> None:  # noqa: ANN401
    answers = properties(dist.ProcessGroup._get_backend(group, CPU), c10d.Backend)
    assert answers["options"].backend == "ringleader"
    assert RecursionError not in answers.values(), answers
    assert not [n for n in answers if "supports_" in n and answers[n] is not False]


@needs_backends
def test_cpp_callers_reach_every_operation_through_the_backend(group: Any) -> None:  # noqa: ANN401
    """The operators of the dispatcher call the backend, not the group."""
    backend: Any = dist.ProcessGroup._get_backend(group, CPU)
    before = backend._get_sequence_number_for_group()
    tensor, output = torch.ones(3), torch.zeros(3)
    opts = dist.AllreduceOptions()
    opts.asyncOp = True
    c10d.Backend.allreduce(backend, [tensor], opts).wait()
    c10d.Backend.all_gather_single(backend, output, tensor).wait()
    c10d.Backend.reduce_scatter_single(backend, output, tensor).wait()
    c10d.Backend.barrier(backend).wait()
    c10d.Backend.monitored_barrier(backend)
    assert output.tolist() == [1, 1, 1]
    assert backend._get_sequence_number_for_group() == before + 4
    torch.distributed.distributed_c10d._add_ephemeral_timeout_for_all_pgs(
        torch.distributed.default_pg_timeout
    )


def test_gather_single_fills_one_tensor(group: Any) -> None:  # noqa: ANN401
    output = torch.zeros(2, 2)
    group.gather_single(output, torch.ones(2, 2), dist.GatherOptions()).wait()
    assert output.sum() == 4


def test_a_destroyed_group_is_freed(group: Any) -> None:  # noqa: ANN401
    """The backend that torch's C++ part of the group holds must not hold the group."""
    extra: Any = dist.new_group([0])
    ended = weakref.ref(extra)
    dist.destroy_process_group(extra)
    del extra
    gc.collect()
    assert ended() is None


def test_every_method_that_cpp_looks_up_in_a_group_is_defined() -> None:
    folder = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    header = next(folder / name for name in TRAMPOLINES if (folder / name).exists())
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.DOTALL)
    text = re.sub(r"#define[^\n]*(\\\n[^\n]*)*", "", text)
    named = re.findall(r"OVERRIDE\w*\(\s*[\w:<> ,]*?ProcessGroup,\s*(\w+)", text)
    quoted = re.findall(r"get_override\([^\"]*?ProcessGroup[^\"]*?\"(\w+)\"", text)
    looked_up = {*named, *quoted}
    assert {"allreduce", "barrier"} <= looked_up
    missing = looked_up - NOT_OURS - set(vars(RingleaderGroup))
    assert not missing, f"torch {torch.__version__} looks these up: {sorted(missing)}"
