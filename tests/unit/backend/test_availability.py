"""The availability of torch's backends, and the reasons."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ringleader
from ringleader.backend import availability, link_availability
from ringleader.backend.availability import BackendInfo, backends, require_backend
from ringleader.backend.link_availability import links
from ringleader.errors import ConfigError
from ringleader.transport.mpi import library


def test_every_backend_of_torch_is_asked_for() -> None:
    assert list(backends()) == ["ringleader", "gloo", "nccl", "mpi", "ucc"]


def test_ours_and_gloo_run_on_any_machine() -> None:
    here = backends()
    assert here["ringleader"].available
    assert "host memory" in here["ringleader"].reason
    assert here["gloo"].available == dist.is_gloo_available()


@pytest.mark.parametrize(
    ("built", "has_gpu", "reason"),
    [
        (False, False, "this torch was built without NCCL"),
        (False, True, "this torch was built without NCCL"),
        (True, False, "NCCL needs an NVIDIA GPU, and torch finds none here"),
        (True, True, "CUDA tensors, on 4 GPU(s)"),
    ],
)
def test_nccl_needs_a_build_and_a_gpu(
    built: bool, has_gpu: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    nccl = backends()["nccl"]
    assert nccl == BackendInfo("nccl", built and has_gpu, reason)


def test_this_machine_has_no_nccl_where_it_has_no_gpu() -> None:
    if torch.cuda.is_available():
        assert require_backend("nccl") == "nccl"
        return
    with pytest.raises(
        ConfigError, match=r"^nccl cannot run here: .*NCCL.*; these can: "
    ):
        require_backend("nccl")


def test_a_torch_without_distributed_has_no_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    for info in backends().values():
        assert not info
        assert "built without torch.distributed" in info.reason


def test_ours_says_when_torch_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.Backend, "_plugins", {})
    assert str(backends()["ringleader"]) == (
        "ringleader: no (not registered with torch; import ringleader after torch)"
    )


@pytest.mark.parametrize("name", ["mpi", "ucc", "gloo"])
def test_what_was_not_built_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_built in (False, True):
        monkeypatch.setattr(
            dist, f"is_{name}_available", lambda is_built=is_built: is_built
        )
        assert backends()[name].available is is_built
        assert ("built without" in backends()[name].reason) is not is_built


def test_require_hands_the_name_on() -> None:
    assert require_backend("gloo") == "gloo"
    assert require_backend("ringleader") == "ringleader"


def test_require_lists_what_there_is_for_an_unknown_name() -> None:
    text = "^unknown backend 'glue'; choose one of: ringleader, gloo, nccl, mpi, ucc$"
    with pytest.raises(ConfigError, match=text):
        require_backend("glue")


def test_require_lists_what_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = {
        "a": lambda: (True, "fine"),
        "b": lambda: (False, "no cable"),
        "c": lambda: (True, "fine"),
    }
    monkeypatch.setattr(availability, "_PROBES", probes)
    with pytest.raises(
        ConfigError, match=r"^b cannot run here: no cable; these can: a, c$"
    ):
        require_backend("b")


def test_an_engine_is_a_truth_and_a_sentence() -> None:
    yes, no = (
        BackendInfo("gloo", True, "CPU tensors"),
        BackendInfo("nccl", False, "no GPU"),
    )
    assert (bool(yes), bool(no)) == (True, False)
    assert (str(yes), str(no)) == ("gloo: yes (CPU tensors)", "nccl: no (no GPU)")


def test_the_package_offers_both() -> None:
    assert ringleader.backends is backends
    assert ringleader.require_backend is require_backend


def test_each_link_says_whether_it_works_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = {link.name: link for link in backends()["ringleader"].links}
    assert list(here) == ["shm", "tcp", "tls", "grpc", "mpi"]
    assert here["tcp"]
    assert str(here["tcp"]).startswith("tcp: yes (between hosts")
    monkeypatch.setattr(link_availability, "find_spec", lambda _name: None)
    monkeypatch.setattr(library, "is_installed", lambda: False)
    link_availability._mpi.cache_clear()
    without = {link.name: link for link in links()}
    link_availability._mpi.cache_clear()
    for name, how in (
        ("tls", "run: pip install cryptography"),
        ("grpc", "run: pip install 'ringleader[coordinator]'"),
        ("mpi", "run: pip install 'ringleader[mpi]'"),
    ):
        assert not without[name]
        assert how in without[name].reason
    assert without["shm"].available == here["shm"].available
