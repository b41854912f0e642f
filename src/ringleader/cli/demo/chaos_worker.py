"""The program of ``ringleader demo --chaos``, on every node and for the reference.

    python chaos_worker.py FOLDER EPOCHS PAUSE_S

Every applied step is a line in a file of the folder: step, loss on the test digits,
number of machines. The file is named after the process; its first line is the number
of steps of the whole run.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from ringleader.cli.demo.training import TrainingConfig, load_digits
from ringleader.settings import node_name
from ringleader.training.elastic import elastic

QUANTA = 12
"""Quanta of a step: enough to share them among three machines, or two."""


def main() -> None:
    """Train the digits with whoever is there."""
    folder, epochs, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)  # nodes share the cores; also makes sums reproducible
    config = TrainingConfig(epochs=epochs)
    digits = load_digits(config)
    torch.manual_seed(config.seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.learning_rate, momentum=config.momentum
    )
    run = elastic(
        model,
        optimizer,
        TensorDataset(digits.train_images, digits.train_labels),
        global_batch=config.batch,
        micro_batch=config.batch // QUANTA,
        epochs=epochs,
        seed=config.seed,
    )
    name = node_name() or "alone"
    with (folder / f"{name}-{os.getpid()}").open("w", encoding="utf-8") as log:
        steps = -(-len(digits.train_labels) // config.batch) * epochs
        log.write(f"{steps}\n")
        log.flush()

        def note_step(*_: object) -> None:
            with torch.no_grad():
                scores = model(digits.test_images)
                loss = float(cross_entropy(scores, digits.test_labels))
            log.write(f"{run.version + 1} {loss!r} {len(run.members)}\n")
            log.flush()

        # Not where step() returns True: a node that is slow may have no quanta.
        optimizer.register_step_post_hook(note_step)
        for images, labels in run:
            time.sleep(pause_s / QUANTA)
            run.backward(cross_entropy(model(images), labels))
            run.step()


if __name__ == "__main__":
    main()
