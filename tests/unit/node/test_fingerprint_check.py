"""Machines that cannot train together are refused; what may differ is reported."""

from __future__ import annotations

from importlib.metadata import version

import msgspec
import pytest

from ringleader.ids import NodeId
from ringleader.node.agent.fingerprint_check import (
    Machine,
    differences,
    explain,
    warnings,
)
from ringleader.node.launch.job_fingerprint import job_fingerprint
from ringleader.node.protocol.node_state import JobFingerprint, NodeState
from ringleader.topology.node_profile import measure

PROFILE = measure()


def machine(name: str, torch: str = "2.13.0", **profile: str) -> Machine:
    state = NodeState(
        name=name,
        host=name,
        addresses=["10.0.0.1"],
        port=4000,
        profile=msgspec.structs.replace(PROFILE, torch_version=torch, **profile),
    )
    return Machine(
        NodeId(name.ljust(52, "a")),
        state,
        JobFingerprint(torch=torch, ringleader="2.1"),
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "is_refused"),
    [
        ("2.13.0", "2.13.0", False),
        ("2.13.0+cpu", "2.13.1", False),
        ("2.13.0", "2.15.0", True),
        ("2.13.0+cpu", "2.14.0+cu130", True),
        ("2.9.1", "3.9.1", True),
        ("", "2.15.0", False),
    ],
)
def test_torch_is_compared_by_its_minor_release(
    ours: str, theirs: str, is_refused: bool
) -> None:
    mine, other = JobFingerprint(torch=ours), JobFingerprint(torch=theirs)
    assert differences(other, mine) == (["torch"] if is_refused else [])


def test_a_refusal_names_both_machines_both_releases_and_the_remedy() -> None:
    mine, other = machine("desk", "2.13.0"), machine("attic", "2.15.0+cu130")
    text = explain(["torch"], mine, other)
    assert "this machine (desk) differs from attic (" in text
    assert "torch is 2.13.0 here and 2.15.0+cu130 there" in text
    assert "pip install 'torch==2.15.*'` on desk" in text


def test_machines_that_replace_gloo_do_not_train_with_those_that_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their groups would wait for each other until the timeout."""
    theirs = machine("attic")
    other = Machine(theirs.node, theirs.state, job_fingerprint(None))
    monkeypatch.setenv("RINGLEADER_DEFAULT", "1")
    mine = Machine(theirs.node, theirs.state, job_fingerprint(None))
    names = differences(other.fingerprint, mine.fingerprint)
    assert names == ["backend"]
    text = explain(names, mine, other)
    assert "backend is ringleader here and the script's there: give both" in text


def test_another_protocol_is_refused_with_the_releases_that_speak_it() -> None:
    mine = machine("desk", ringleader_version="0.1.0")
    newer = machine("attic", ringleader_version="0.2.0")
    other = Machine(newer.node, newer.state, JobFingerprint(ringleader="2.2"))
    names = differences(other.fingerprint, mine.fingerprint)
    assert names == ["ringleader"]
    text = explain(names, mine, other)
    assert "0.1.0 (protocol 2.1) here and 0.2.0 (protocol 2.2) there" in text
    assert "pip install --upgrade ringleader" in text


def test_every_property_that_is_compared_comes_with_advice() -> None:
    names = list(JobFingerprint.__struct_fields__)
    text = explain(names, machine("desk"), machine("attic"))
    assert text.count(" here and ") + text.count("imported modules") == len(names)


def test_machines_that_may_differ_in_results_are_told_so() -> None:
    same = [machine("desk", "2.13.0+cpu"), machine("attic", "2.13.0+cu130")]
    assert warnings(same) == []
    patched = [*same, machine("barn", "2.13.1")]
    (text,) = warnings(patched)
    assert "torch is 2.13.0 on desk, 2.13.0 on attic, 2.13.1 on barn" in text
    older = machine("desk", python_version="3.11.7")
    (text,) = warnings([older, machine("attic", python_version="3.12.1")])
    assert "Python is 3.11 on desk, 3.12 on attic" in text
    older = machine("desk", ringleader_version="0.1.0")
    (text,) = warnings([older, machine("attic", ringleader_version="0.1.1")])
    assert "ringleader is 0.1.0 on desk, 0.1.1 on attic" in text


def test_this_machine_reports_its_whole_torch_version() -> None:
    mine = job_fingerprint(None)
    assert mine.torch == version("torch")
    assert mine.ringleader.count(".") == 1
