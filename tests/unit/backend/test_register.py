"""Registration with torch: automatic, and errors never break torch."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ringleader.backend import default_backend, device_map, register
from ringleader.node.launch import torch_entry_points as node_register

WITHIN_S = 300.0
"""Importing torch takes two seconds, and ten on a busy machine."""

BROKEN = """
import ringleader.backend.register as ours

def register():
    raise LookupError("the backend is broken")

ours.register = register
"""
"""A sitecustomize: runs before the script, so before torch."""

SCRIPTS = {
    "broken": """
import torch
assert torch.ones(3).sum() == 3
print("ringleader" in torch.distributed.Backend.backend_list)
""",
    "unimported": """
import sys, torch, torch.distributed as dist
dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.full((3,), 5.0)
dist.all_reduce(tensor)
dist.barrier()
print(tensor.tolist(), dist.get_backend())
dist.destroy_process_group()
""",
    "rendezvous first": """
import ringleader.node.launch.elastic_rendezvous
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as known
print("mdns" in known._registry)
""",
    "not autoloaded": """
import torch.distributed as dist
print("ringleader" in dist.Backend.backend_list)
import ringleader
print("ringleader" in dist.Backend.backend_list)
ringleader.require_backend("ringleader")
""",
}


@dataclass(frozen=True)
class Ended:
    """The outcome of a script."""

    code: int
    out: str
    err: str


def end_of(name: str, **env: str) -> Ended:
    """Run a script to its end."""
    with run(SCRIPTS[name], env) as process:
        try:
            out, err = process.communicate(timeout=WITHIN_S)
        finally:
            process.kill()
    return Ended(process.returncode, out, err)


def run(script: str, env: dict[str, str]) -> subprocess.Popen[str]:
    # A path of the parent's would hide an installation that is not there.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**inherited, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_script_needs_no_import_of_ours() -> None:
    assert end_of("unimported") == Ended(0, "[5.0, 5.0, 5.0] ringleader\n", "")


@pytest.mark.slow
def test_a_broken_backend_does_not_break_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    script = end_of("broken", PYTHONPATH=str(tmp_path))
    assert (script.code, script.out) == (0, "False\n")
    assert "the ringleader backend is not available" in script.err
    assert "LookupError: the backend is broken" in script.err


@pytest.mark.slow
def test_without_autoload_importing_us_after_torch_is_enough() -> None:
    script = end_of("not autoloaded", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert script == Ended(0, "False\nTrue\n", "")


@pytest.mark.slow
def test_torchrun_knows_mdns_whichever_module_is_imported_first() -> None:
    assert end_of("rendezvous first") == Ended(0, "True\n", "")


def test_the_entry_point_needs_nothing_that_could_be_missing() -> None:
    """An error before ``autoload`` is called would break torch."""
    script = (
        "import sys; before = set(sys.modules); import ringleader.backend.register\n"
        "names = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(names - sys.stdlib_module_names))"
    )
    with run(script, {}) as process:
        out, err = process.communicate(timeout=WITHIN_S)
    assert (out, err) == ("['ringleader']\n", "")


def test_autoload_logs_what_it_swallows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise LookupError("the backend is broken")

    monkeypatch.setattr(register, "register", broken)
    with caplog.at_level(logging.ERROR):
        register.autoload()
    (record,) = caplog.records
    assert record.name == "ringleader.backend.register"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)


def test_a_backend_that_is_known_is_not_registered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("registered twice")

    assert "RINGLEADER" in dist.Backend._plugins
    monkeypatch.setattr(dist.Backend, "register_backend", refuse)
    register.register()


def test_a_torch_without_distributed_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "Backend")
    register.autoload()
    assert caplog.records == []


def test_it_is_registered_for_every_device_we_stage() -> None:
    config = dist.distributed_c10d.BackendConfig(dist.Backend("ringleader"))
    assert {config.get_device_backend_map()[d] for d in register.DEVICES} == {
        "ringleader"
    }


def test_the_entry_points_are_those_of_the_installed_package() -> None:
    """torch finds the backend by this metadata."""
    from importlib.metadata import entry_points

    (found,) = entry_points(group="torch.backends", name="ringleader")
    assert found.load() is node_register.autoload
    (handler,) = entry_points(group="torchrun.handlers", name="mdns")
    assert callable(handler.load()())


@pytest.mark.parametrize(
    ("address", "round_id", "expected"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("192.168.1.7", "", ""),
        ("192.168.1.7", "r1", "192.168.1.7"),
        ("localhost", "", ""),
        ("", "", ""),
    ],
)
def test_name_lookups_are_off_only_where_that_harms_nobody(
    address: str, round_id: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was: in every program of torch whose MASTER_ADDR was numeric."""
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("RINGLEADER_ROUND", round_id)
    assert node_register._address_without_names() == expected


@pytest.mark.parametrize("module", [default_backend, device_map])
def test_a_torch_that_creates_groups_otherwise_is_left_alone(module: Any) -> None:  # noqa: ANN401
    assert module._create({"group_size": 1}, lambda: "made") == "made"
