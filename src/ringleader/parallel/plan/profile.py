"""What was measured of the layers of a model, and of the machines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """Bytes of one layer; the same on every machine.

    A parameter that several layers use counts in each of them: those layers may become
    stages of different machines, and then each has a copy.
    """

    name: str
    parameter_bytes: int
    """Parameters and buffers."""
    gradient_bytes: int
    """0 for frozen parameters."""
    optimizer_bytes: int
    activation_bytes: int
    """What the forward of one micro-batch keeps for its backward."""
    input_bytes: int
    """Input of one micro-batch; the gradient of it has as many."""
    output_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """The machine of one rank."""

    name: str
    memory_bytes: int
    """What the rank may use for the model, in total."""
    layer_seconds: tuple[float, ...]
    """Forward and backward of one micro-batch, per layer."""

    def seconds(self, begin: int, end: int) -> float:
        """Return the time of the layers ``begin`` to ``end - 1``."""
        return sum(self.layer_seconds[begin:end])


def slowest_of(machines: list[MachineProfile]) -> MachineProfile:
    """Return a machine as slow and as small as the worst of ``machines``.

    Replicas of a pipeline wait for each other at every step, so a stage takes as long
    as its slowest replica and must fit on its smallest one.
    """
    layers = zip(*(machine.layer_seconds for machine in machines), strict=True)
    return MachineProfile(
        name=" + ".join(dict.fromkeys(machine.name for machine in machines)),
        memory_bytes=min(machine.memory_bytes for machine in machines),
        layer_seconds=tuple(max(seconds) for seconds in layers),
    )
