"""One machine of ``elastic_join.py``: trains 25 M parameters, and tells what it does.

The computation of a quantum is mostly a wait, as with an accelerator: two cores serve
four machines here, and the network is to be measured. Reports are lines of JSON with
times of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import time

STARTED_S = time.monotonic()

import argparse  # noqa: E402 - the time of the imports is a part of the result
import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402
import torch._dynamo  # noqa: E402 - the first optimizer imports it
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

from ringleader.membership.member import View  # noqa: E402
from ringleader.training import following  # noqa: E402
from ringleader.training.elastic import elastic  # noqa: E402
from ringleader.training.view_session import ViewSession  # noqa: E402

WIDTH, LAYERS, CLASSES = 1013, 24, 7
"""24.7 million parameters in 24 layers, in sizes that divide by nothing."""
QUANTA, MICRO_BATCH = 6, 2


class Points(Dataset[tuple[Tensor, int]]):
    """Random points with a label each."""

    def __len__(self) -> int:
        return 1_000_003

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        made = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=made), index % CLASSES


def make_model(num_layers: int) -> nn.Module:
    """Return the model with its first weights."""
    torch.manual_seed(5)
    layers: list[nn.Module] = []
    for _ in range(num_layers):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def state_digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a digest of all bits of parameters and moments."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        for tensor in (parameter.detach(), state["exp_avg"], state["exp_avg_sq"]):
            whole.update(tensor.numpy().data)
    return whole.hexdigest()[:16]


def say(event: str, **fields: object) -> None:
    """Report something that happens now."""
    at_s = time.monotonic()
    sys.stdout.write(json.dumps({"event": event, "at_s": at_s, **fields}) + "\n")
    sys.stdout.flush()


def train(pause_s: float, full: int, num_layers: int) -> None:
    """Train until killed; ``full`` is the number of members with the newcomer."""
    torch.set_num_threads(1)
    model = make_model(num_layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    release = following.RunMembership.release

    def released(membership: following.RunMembership) -> None:
        say("level")
        release(membership)

    following.RunMembership.release = released  # type: ignore[method-assign]
    install = ViewSession.install

    def installed(session: ViewSession, view: View) -> None:
        install(session, view)
        say("view", members=len(view.members))

    ViewSession.install = installed  # type: ignore[method-assign]
    say("joining", started_s=STARTED_S, cpu_s=time.process_time())
    run = elastic(
        model,
        optimizer,
        Points(),
        global_batch=QUANTA * MICRO_BATCH,
        micro_batch=MICRO_BATCH,
        epochs=None,
    )
    say("returned", version=run.version, cpu_s=time.process_time())
    num_full = 0
    for x, y in run:
        time.sleep(pause_s)
        run.backward(nn.functional.cross_entropy(model(x), y))
        if run.step():
            at_s = time.monotonic()
            num_full = num_full + 1 if len(run.members) == full else 0
            # The first full step of a newcomer may be the others' second.
            digest = state_digest(model, optimizer) if 1 <= num_full <= 3 else ""
            say(
                "step",
                at=at_s,
                version=run.version,
                members=len(run.members),
                by=len(run.contributors),
                digest=digest,
                cpu_s=time.process_time(),
            )


def burn(cores: float, seconds: float) -> None:
    """Use so much of a core for so long, in slices of 50 ms, and join nothing."""
    end_s = time.monotonic() + seconds
    say("joining", started_s=STARTED_S, cpu_s=time.process_time())
    a = torch.rand(1 << 20)
    while (now_s := time.monotonic()) < end_s:
        while time.monotonic() < now_s + 0.05 * cores:
            a.mul_(1.0)
        time.sleep(0.05 * (1 - min(cores, 1.0)))
    say("returned", cpu_s=time.process_time())


def main() -> None:
    """Train, or only use the processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--full", type=int, default=4)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--burn", type=float)
    parser.add_argument("--seconds", type=float, default=8.0)
    chosen = parser.parse_args()
    if chosen.burn is not None:
        burn(chosen.burn, chosen.seconds)
    else:
        train(chosen.pause, chosen.full, chosen.layers)
    os._exit(0)


if __name__ == "__main__":
    main()
