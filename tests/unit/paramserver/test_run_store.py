"""What a run on disk gives to a restarted server, without any network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from ringleader.identity.secret_value import Secret
from ringleader.paramserver.server.admission import Admission
from ringleader.paramserver.server.global_weights import GlobalWeights
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.scheduler import Scheduler
from ringleader.paramserver.server.storage.journal_records import (
    Joined,
    Leased,
    Left,
    Quarantined,
)
from ringleader.paramserver.server.storage.run_store import RunStore
from ringleader.paramserver.server.training import Training


@contextmanager
def opened(out: Path, worker: str = "") -> Iterator[tuple[Training, str]]:
    """Begin a run with ``worker``, or resume it; also give the token of the worker."""
    weights = GlobalWeights(
        nn.Linear(2, 2),
        lambda model: torch.optim.SGD(model.parameters(), 0.1),
        is_difference=False,
    )
    scheduler = Scheduler(Plan(rounds=9, workers=1))
    admission = Admission(Secret(bytes(16)), None)
    token = ""
    if worker:
        scheduler.workers.add(worker, "anna", "cpu", 0.0)
        token, _ = admission.issue_token(worker)
    training = Training(scheduler, admission, RunStore(out, weights, every=5))
    try:
        training.open()
        yield training, token
    finally:
        training.close()


def joined(worker: str) -> Joined:
    return Joined(worker=worker, token="00", name="ben", device="cpu", nonce="11")


def test_a_token_that_ended_by_lost_history_stays_ended(tmp_path: Path) -> None:
    with opened(tmp_path, "w1") as (training, token):
        for record in (joined("w2"), Left("w2"), joined("w3"), Left("w3")):
            training.store.record_event(record)
        path = training.store.journal_path
    damaged = bytearray(path.read_bytes())
    damaged[-80] ^= 1
    path.write_bytes(damaged)
    with opened(tmp_path) as (training, _):
        assert training.store.notes
        assert training.admission.worker_of(token) is None
        kept = list(training.scheduler.workers)
        assert "w2" in kept
    with opened(tmp_path) as (training, _):
        assert not training.store.notes
        assert training.admission.worker_of(token) is None, "valid again"
        assert list(training.scheduler.workers) == kept


def test_a_quarantined_worker_has_no_lease_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, "w1") as (training, _):
        training.store.record_event(Leased("w1", (0, 0, 0)))
    with opened(tmp_path) as (training, _):
        assert training.scheduler.awaited() == ["w1"]
        training.store.record_event(Quarantined("w1"))
    with opened(tmp_path) as (training, _):
        assert training.scheduler.workers["w1"].is_quarantined
        assert not training.scheduler.leases
