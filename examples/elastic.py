"""A character transformer that trains on whatever machines are there.

    ringleader run --survive examples/elastic.py

Type it on one machine of a cluster, then pull the plug of another: the rest finish the
step. Alone, ``python examples/elastic.py`` trains on this machine, with the same
samples in the same order.
"""

from __future__ import annotations

import argparse

import torch
from chargpt_model import Windows, loss_of, make_model, sums_in_words

import ringleader


def main() -> None:
    """Train, and print the loss now and then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    options = parser.parse_args()

    torch.manual_seed(0)
    data = Windows(sums_in_words(), options.context)
    model = make_model(len(data.characters), options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    run = ringleader.elastic(
        model,
        optimizer,
        data,
        global_batch=64,
        micro_batch=8,
        epochs=options.epochs,
        clip=1.0,
    )
    loss = torch.tensor(0.0)
    for text, target in run:  # this machine's share of each step
        loss = loss_of(model(text), target)
        run.backward(loss)
        if run.step() and run.version % 10 == 0:
            run.log(loss=loss)
    print(f"finished after {run.version} steps: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
