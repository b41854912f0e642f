"""A character transformer: DDP, FSDP or a pipeline by a flag; Ctrl-C saves.

It learns a text file, or sentences such as "two plus five is seven." that it makes up.

    torchrun --standalone --nproc-per-node 3 examples/chargpt.py --strategy fsdp

Ctrl-C saves a checkpoint. The same command, also with another number of processes and
another strategy, goes on at the next step:

    torchrun --standalone --nproc-per-node 2 examples/chargpt.py --strategy ddp

On several machines, which need no common disk:

    ringleader run --checkpoint ~/chargpt examples/chargpt.py --strategy pipeline

At the end it prints a sample, and the loss of every step is in loss.svg in the folder.
"""

from __future__ import annotations

import argparse
import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from chargpt_model import Windows, loss_of, make_model, sums_in_words
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

import ringleader


@dataclass
class Interrupt:
    """Ctrl-C, or SIGTERM from a launcher: the step at hand is finished, then saved."""

    came: bool = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.came = True

    def on_any_rank(self) -> bool:
        """Return whether a rank was interrupted; all ranks stop after the same step."""
        came = torch.tensor(int(self.came))
        dist.all_reduce(came, dist.ReduceOp.MAX)
        return bool(came)


@dataclass
class Losses:
    """The loss of every step, saved with the checkpoint."""

    values: list[float] = field(default_factory=list)

    def state_dict(self) -> dict[str, list[float]]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.values = state["values"]


def train(options: argparse.Namespace, data: Windows, folder: str) -> Losses | None:
    """Train until all steps are done; None if a rank was interrupted."""
    interrupt, losses = Interrupt(), Losses()
    interrupt.listen()
    trainer = ringleader.parallelize(
        make_model(len(data.characters), options),
        options.strategy,
        optimizer=lambda p: torch.optim.AdamW(p, lr=options.learning_rate),
        loss=loss_of,
        clip=1.0,
        **pipeline_options(data, options),
    )
    batches = ringleader.shard(
        data, options.batch, rank=trainer.data_rank, size=trainer.data_size
    )
    state = {"data": batches, "losses": losses, "trainer": trainer}
    loaded = ringleader.checkpoint.load(
        folder, trainer.model, trainer.optimizer, **state
    )
    if loaded:
        say(f"resumed after step {loaded.step}: loss {losses.values[-1]:.4f}")

    def save() -> None:
        ringleader.checkpoint.save(
            folder, trainer.steps, trainer.model, trainer.optimizer, **state
        )

    stream = (batch for _ in itertools.count() for batch in batches)
    with progress(trainer.steps, options.steps) as show:
        while not (stop := interrupt.on_any_rank()) and trainer.steps < options.steps:
            x, y = next(stream)
            losses.values.append(float(trainer.step(x, y)))
            show(trainer.steps, losses.values[-1])
            if trainer.steps % options.save_every == 0:
                save()
    if trainer.steps % options.save_every:
        save()
    if stop:
        saved = f"saved step {trainer.steps} in {folder}"
        say(f"interrupted: {saved if trainer.steps else 'before the first step'}")
    return None if stop else losses


def pipeline_options(data: Windows, options: argparse.Namespace) -> dict[str, Any]:
    """Return a batch, with which the layers are measured before the model is cut."""
    if options.strategy != "pipeline":
        return {}
    pieces = [data[i % len(data)] for i in range(options.batch)]
    return {"example": [torch.stack(each) for each in zip(*pieces, strict=True)]}


@contextmanager
def progress(done: int, steps: int) -> Iterator[Callable[[int, float], None]]:
    """A bar on a terminal, else ten lines; rank 0 has it."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.description}"))
    is_hidden = dist.get_rank() != 0 or not console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=is_hidden
    ) as bar:
        task = bar.add_task("", total=steps, completed=done)

        def show(step: int, loss: float) -> None:
            bar.update(task, completed=step, description=f"{loss:.4f}")
            if is_hidden and step % max(1, steps // 10) == 0:
                say(f"step {step}: loss {loss:.4f}")

        yield show


@torch.no_grad()
def sample(options: argparse.Namespace, data: Windows, folder: str) -> str:
    """Let the whole model write, whichever way it was trained: all ranks load it."""
    model = make_model(len(data.characters), options)
    ringleader.checkpoint.load(folder, model)
    generator = torch.Generator().manual_seed(1)
    codes = [data.characters.index("\n") if "\n" in data.characters else 0]
    for _ in range(options.sample):
        last = torch.tensor([codes[-options.context :]])
        likely = (model(last)[0, -1] / 0.5).softmax(dim=0)
        codes.append(int(torch.multinomial(likely, 1, generator=generator)))
    return "".join(data.characters[code] for code in codes)


def plot(losses: list[float]) -> str:
    """Return a picture of the loss as SVG, which every browser shows."""
    width, height, top = 640, 320, max(losses)
    across = width / max(1, len(losses) - 1)
    points = [
        f"{i * across:.1f},{height * (1 - x / top):.1f}" for i, x in enumerate(losses)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-50 -20 {width + 70} '
        f'{height + 60}" font-family="sans-serif" font-size="12">'
        f'<path d="M0,0 V{height} H{width}" fill="none" stroke="gray"/>'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="steelblue"/>'
        f'<text x="-45" y="5">{top:.2f}</text><text x="-45" y="{height}">0</text>'
        f'<text x="0" y="{height + 20}">step 1</text>'
        f'<text x="{width}" y="{height + 20}" text-anchor="end">{len(losses)}</text>'
        f'<text x="{width}" y="15" text-anchor="end">loss {losses[-1]:.4f}</text>'
        "</svg>\n"
    )


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)  # all processes share the cores of this machine
    torch.manual_seed(0)
    dist.init_process_group(options.backend)
    text = options.text.read_text() if options.text else sums_in_words()
    data = Windows(text, options.context)
    folder = ringleader.checkpoint.folder() or options.folder
    losses = train(options, data, folder)
    if losses is not None:
        written = sample(options, data, folder)
        say(f"loss {losses.values[-1]:.4f}; sample:{written}")
        if dist.get_rank() == 0 and "://" not in folder:
            Path(folder, "loss.svg").write_text(plot(losses.values))
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    add = (parser := argparse.ArgumentParser(description=__doc__)).add_argument
    add("text", type=Path, nargs="?", help="a text file; without it, sums in words")
    add("--strategy", choices=["ddp", "fsdp", "pipeline"], default="ddp")
    add("--folder", default="chargpt", help="checkpoints, unless the launcher has one")
    add("--backend", default="ringleader", help="or gloo, to compare")
    numbers = {"steps": 300, "batch": 48, "layers": 4, "heads": 4, "width": 128}
    numbers |= {"context": 64, "save-every": 100, "sample": 120}
    for name, default in numbers.items():
        add(f"--{name}", type=int, default=default)
    add("--learning-rate", type=float, default=1e-3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
