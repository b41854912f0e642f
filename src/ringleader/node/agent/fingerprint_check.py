"""Decides whether two machines can train one job together, and says what differs.

What cannot work is refused before anything starts: another program, another protocol,
another minor release of torch. What may only change results is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ringleader.backend.torch_release import minor
from ringleader.ids import NodeId, short, tell_apart
from ringleader.node.protocol.node_state import JobFingerprint, NodeState

_ADVICE = {
    "script": "copy the same file to both, or start both with --any-script",
    "modules": "copy the same files to both, or start both with --any-script",
    "torch": "DDP, FSDP and checkpoints of different minor releases may not make the "
    "same calls; run `pip install 'torch=={}.*'` on {}",
    "ringleader": "run `pip install --upgrade ringleader` on both",
    "compress": "give both the same --compress",
    "backend": "give both the same --backend (and RINGLEADER_DEFAULT), or neither",
    "survive": "give both --survive and the same --partition, or neither",
}
"""What to do about each difference. The fields of "torch" are a version and a name."""

_RESULTS = "results may differ in the last bits; with one release they do not"
_PICKLES = "objects that one of them pickles may not load on the other; tensors do"
_RELEASES = "they speak the same protocol; upgrade the older one when you can"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that wants to take part in a job."""

    node: NodeId
    state: NodeState
    fingerprint: JobFingerprint

    def shown(self, name: str) -> str:
        """Return a property as the user knows it."""
        value: str = getattr(self.fingerprint, name)
        if name == "ringleader":
            value = f"{self.state.profile.ringleader_version} (protocol {value})"
        return value


def differences(wanted: JobFingerprint, got: JobFingerprint) -> list[str]:
    """Return the names of the properties that differ; empty ones are not compared."""
    ours, theirs = msgspec.structs.asdict(got), msgspec.structs.asdict(wanted)
    for values in (ours, theirs):
        values["torch"] = minor(values["torch"])
    both = [k for k in ours if ours[k] and theirs[k]]
    if "script" in both:  # then the modules are known, even if there are none
        both = list(dict.fromkeys([*both, "modules"]))
    return [k for k in both if ours[k] != theirs[k]]


def explain(names: Sequence[str], mine: Machine, other: Machine) -> str:
    """Return why ``mine`` may not train with ``other``, and what to do about it."""
    needed, here = minor(other.fingerprint.torch), mine.state.name
    listed = "; ".join(
        f"{_compare(name, mine, other)}: {_ADVICE[name].format(needed, here)}"
        for name in names
    )
    there = f"{other.state.name} ({short(other.node)})"
    return f"this machine ({here}) differs from {there}: {listed}"


def _compare(name: str, mine: Machine, other: Machine) -> str:
    if name != "modules":
        return f"{name} is {mine.shown(name)} here and {other.shown(name)} there"
    ours, theirs = mine.fingerprint.modules, other.fingerprint.modules
    both = ours.keys() & theirs.keys()
    kinds = {
        "differ": sorted(path for path in both if ours[path] != theirs[path]),
        "are missing here": sorted(theirs.keys() - both),
        "are missing there": sorted(ours.keys() - both),
    }
    words = [f"{', '.join(paths)} {how}" for how, paths in kinds.items() if paths]
    return f"of the imported modules {' and '.join(words)}"


def warnings(machines: Sequence[Machine]) -> list[str]:
    """Return a sentence for each kind of release in which ``machines`` differ.

    They can train together all the same.
    """
    names = tell_apart({machine.node: machine.state.name for machine in machines})
    profiles = [machine.state.profile for machine in machines]
    torch = [profile.torch_version.partition("+")[0] for profile in profiles]
    python = [minor(profile.python_version) for profile in profiles]
    ringleader = [profile.ringleader_version for profile in profiles]
    found = []
    for what, releases, effect in (
        ("torch", torch, _RESULTS),
        ("Python", python, _PICKLES),
        ("ringleader", ringleader, _RELEASES),
    ):
        if len({each for each in releases if each}) > 1:
            who = ", ".join(
                f"{release or 'unknown'} on {names[machine.node]}"
                for release, machine in zip(releases, machines, strict=True)
            )
            found.append(f"warning: {what} is {who}: {effect}")
    return found
