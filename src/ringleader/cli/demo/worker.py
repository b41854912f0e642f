"""One rank of the demo: ``python -m ringleader.cli.demo.worker``."""

from __future__ import annotations

import argparse
import shutil
import time

import torch

from ringleader.cli.demo.training import (
    Digits,
    TrainingConfig,
    TrainingResult,
    load_digits,
    train,
)
from ringleader.cli.json_socket import Message, Report, serve
from ringleader.collectives.config import CollectiveConfig
from ringleader.errors import ConfigError
from ringleader.ids import NodeId, short
from ringleader.node.launch.join import join, snapshot
from ringleader.settings.checkpoint import checkpoint_folder

_TIMEOUT_S = 30.0
"""Limit for one all_reduce, after which a stuck rank ends the demo."""

_JOIN_S = 60.0

_IN_WORDS = {"shm": "shared memory", "tcp": "TCP"}


class DemoRank:
    """Trains on request, then compares the result with a single-process run."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._config = TrainingConfig()
        self._digits: Digits | None = None
        self._trained: TrainingResult | None = None
        self._transport = ""

    def handle(self, task: Message, report: Report) -> Message:
        """Perform one task of the parent and return the reply."""
        match task:
            case {"do": "train", "nodes": int(nodes), "epochs": int(epochs)}:
                self._config = TrainingConfig(epochs=epochs)
                return self._train(nodes, report)
            case {"do": "compare"}:
                return self._compare()
            case _:
                raise ConfigError(f"demo worker: unknown task {task}")

    def _train(self, nodes: int, report: Report) -> Message:
        """Train half of the epochs, leave, join again and train the rest."""
        self._digits = load_digits(self._config)
        halfway = self._config.epochs // 2
        first = self._join_and_train(nodes, report, halfway) if halfway else None
        if first and self._rank == nodes - 1 > 0:  # its part is on another node, too
            shutil.rmtree(checkpoint_folder())
        trained = self._trained = self._join_and_train(nodes, report, None)
        before = first.steps if first else 0
        return {
            "transport": self._transport,
            "digest": trained.digest(),
            "accuracy": trained.accuracy,
            "loss": trained.loss,
            "steps": before + trained.steps,
            "resumed_after": trained.begun_after,
            "resumed_step": before,
            "step_bytes": trained.step_bytes,
            "parameters": trained.parameters.numel(),
            "seconds": trained.seconds + (first.seconds if first else 0.0),
            "test_digits": len(self._digits.test_labels),
        }

    def _join_and_train(
        self, nodes: int, report: Report, until: int | None
    ) -> TrainingResult:
        assert self._digits is not None
        config = CollectiveConfig(timeout_s=_TIMEOUT_S)
        started_s = time.monotonic()
        with join(nodes, config=config, timeout_s=_JOIN_S) as ranks:
            report(_cluster(time.monotonic() - started_s))

            def on_epoch(epoch: int, loss: float) -> None:
                if ranks.rank == 0:
                    report({"epoch": epoch, "loss": loss})

            trained = train(self._config, self._digits, ranks, on_epoch, until)
            kinds = sorted(set(ranks.links().values()))
        self._transport = " and ".join(_IN_WORDS.get(k, k) for k in kinds) or "no link"
        return trained

    def _compare(self) -> Message:
        assert self._trained is not None, "compare comes after train"
        assert self._digits is not None, "compare comes after train"
        alone = train(self._config, self._digits, None, lambda epoch, loss: None)
        apart = (self._trained.parameters - alone.parameters).abs().max()
        return {"largest_difference": float(apart)}


def _cluster(seconds: float) -> Message:
    """Describe the cluster as this machine sees it when training begins."""
    seen = snapshot()
    names = {row.node: row.name for row in seen.nodes}
    return {
        "joined_s": seconds,
        "epoch_of_view": seen.epoch,
        "leader": f"{names[seen.leader]} ({short(NodeId(seen.leader))})",
        "ring": [names[node] for node in seen.ring],
    }


def main() -> None:
    """Handle tasks until the parent closes the socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    parser.add_argument("--rank", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores; also makes sums reproducible
    serve(arguments.control, {"rank": arguments.rank}, DemoRank(arguments.rank).handle)


if __name__ == "__main__":
    main()
