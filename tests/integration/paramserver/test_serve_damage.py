"""Damage on the server's disk: the same state, or a sentence about what is lost."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from ringleader.cli.serve_announcement import announce
from ringleader.errors import ConfigError
from ringleader.paramserver.evaluation import find_weights, load_model
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.run import Run, ServerOptions, open_run
from ringleader.paramserver.server.storage import journal, scheduler_state
from tests.kit.param_server import MANIFEST, RATE, WorkerClient, server, task

STEPS = 8
EVERY = 3
"""Checkpoints 0, 3 and 6; journals of 3 to 6, and of 6 to 8 with half a version."""
TASK = replace(
    task(),
    make_optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=RATE, momentum=0.9),
)
PLAN = Plan(rounds=99, workers=2, scale_rate=False)


@dataclass(frozen=True)
class State:
    """Everything that a restarted server must know again."""

    weights: bytes
    momentum: bytes
    scheduler: str
    tokens: dict[str, str]
    nonces: dict[str, str]
    key: tuple[bytes, bytes]

    @classmethod
    def of(cls, run: Run) -> State:
        training = run.app.training
        store = training.store
        kept = store.weights.optimizer.state_dict()["state"].values()
        return cls(
            MANIFEST.values(store.weights.model).tobytes(),
            b"".join(s["momentum_buffer"].numpy().tobytes() for s in kept),
            repr(scheduler_state.dump(training.scheduler)),
            training.admission.tokens,
            store.nonces,
            (run.key.fingerprint, run.key.secret.reveal()),
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a server that was killed in the middle of a version."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with (
        server(out, rounds=99, workers=2, every=EVERY, what=TASK) as served,
        served.clients(2) as (anna, ben),
    ):
        for _ in range(STEPS):
            for client in (anna, ben):
                assert client.step() is not None
        assert anna.step() is not None
        assert served.training.scheduler.version == STEPS
    return out


@contextmanager
def resumed(out: Path) -> Iterator[Run]:
    run = open_run(TASK, PLAN, ServerOptions(out=out, checkpoint_every=EVERY))
    try:
        yield run
    finally:
        run.close()


def state_in(out: Path) -> tuple[State, list[str]]:
    with resumed(out) as run:
        return State.of(run), run.notes


def state_or_refusal(out: Path) -> tuple[State | None, list[str]]:
    try:
        return state_in(out)
    except ConfigError as exc:
        return None, [str(exc)]


def flip(path: Path, place: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.unlink()  # weights.safetensors is a link to the newest checkpoint
    path.write_bytes(data)
    path.chmod(0o600)


def files_of(whole: Path) -> list[Path]:
    found = [p.relative_to(whole) for p in whole.rglob("*") if p.is_file()]
    return sorted(p for p in found if (whole / p).stat().st_size)


def _check_flips(whole: Path, tmp_path: Path, count: int) -> None:
    expected, notes = state_in(shutil.copytree(whole, tmp_path / "intact"))
    assert notes == []
    chance = random.Random(15)
    told = 0
    for name in files_of(whole):
        for _ in range(count):
            out = tmp_path / "flipped"
            shutil.copytree(whole, out)
            place = chance.randrange((out / name).stat().st_size)
            flip(out / name, place, bit := chance.randrange(8))
            where = f"{name} byte {place} bit {bit}"
            found, notes = state_or_refusal(out)
            assert found == expected or notes, where
            assert all(name.name in n and "damaged" in n for n in notes), where
            told += bool(notes)
            shutil.rmtree(out)
    assert told > 2 * count


def test_a_flipped_bit_changes_nothing_silently(whole: Path, tmp_path: Path) -> None:
    _check_flips(whole, tmp_path, 2)


@pytest.mark.slow
def test_many_flipped_bits_change_nothing_silently(whole: Path, tmp_path: Path) -> None:
    _check_flips(whole, tmp_path, 15)


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "state.json"]
)
@pytest.mark.parametrize("kind", ["flip", "cut", "missing"])
def test_a_damaged_checkpoint_is_replaced_by_the_last_and_its_journal(
    whole: Path, tmp_path: Path, name: str, kind: str
) -> None:
    expected, _ = state_in(shutil.copytree(whole, tmp_path / "intact"))
    out = shutil.copytree(whole, tmp_path / "run")
    path = out / "checkpoints" / "000006" / name
    if kind == "flip":
        flip(path, path.stat().st_size - 9, 3)
    elif kind == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    found, notes = state_in(out)
    assert found == expected
    (note,) = notes
    assert str(path) in note
    assert "Resumed from version 3 and its journal: nothing is lost." in note
    assert (out / "checkpoints" / "000006.damaged").is_dir()
    assert state_in(out) == (expected, [])


def test_a_damaged_journal_is_told_and_workers_begin_anew(
    whole: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    journal = out / "journal-000006.log"
    flip(journal, journal.stat().st_size // 2, 0)
    with server(out, rounds=9, workers=2, every=EVERY, what=TASK) as served:
        (note,) = served.run.notes
        assert f"{journal} is damaged: the record at byte" in note
        assert "Resumed at version 7; what was acknowledged after that is lost." in note
        assert served.training.admission.tokens == {}
        with served.clients(2) as (anna, ben):
            for _ in range(2):
                for client in (anna, ben):
                    assert client.step() is not None
        assert served.training.scheduler.version == 9
    kept = Path(f"{journal}.damaged")
    assert kept.stat().st_size > 0
    with resumed(out) as run:
        assert run.notes == []
        assert run.app.training.scheduler.version == 9


@pytest.mark.parametrize("where", ["in a record", "between records", "everything"])
def test_a_journal_that_lost_its_end_is_told(
    whole: Path, tmp_path: Path, where: str
) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    path = out / "journal-000006.log"
    ends = [entry.end for entry in journal.read(path)]
    left = {"in a record": ends[-1] - 5, "between records": ends[-2], "everything": 0}
    os.truncate(path, left[where])
    with resumed(out) as run:
        (note,) = run.notes
        lost = ends[-1] - (ends[-2] if left[where] else 0)
        assert f"{path} is damaged: it ends at byte {left[where]}" in note
        assert f"{lost} bytes of records are missing" in note
        version = run.app.training.scheduler.version
        assert version == (STEPS if left[where] else 6)
        assert f"Resumed at version {version}; what was acknowledged after" in note
        assert run.app.training.admission.tokens == {}, "workers may be ahead"
    with resumed(out) as run:
        assert run.notes == []


def test_of_a_run_without_lengths_it_is_said_what_is_not_known(
    whole: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    path = out / "journal-000006.log"
    journal.end_path(path).unlink()
    os.truncate(path, path.stat().st_size - 5)
    with resumed(out) as run:
        (note,) = run.notes
        assert f"{path} ends in the middle of a record" in note
        assert (
            "if the file was cut later, what was acknowledged after version 8" in note
        )
    with resumed(out) as run:
        assert run.notes == []


def test_what_cannot_be_replayed_is_set_aside(whole: Path, tmp_path: Path) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    for version in (3, 6):
        flip(out / "checkpoints" / f"{version:06d}" / "state.json", 40, 0)
    with resumed(out) as run:
        assert run.app.training.scheduler.version == 0
        (note,) = run.notes
        assert "journal-000000.log is damaged: it is missing" in note
        assert "Resumed at version 0" in note
        assert "(up to version 6 or later) is lost" in note
    assert not (out / "journal-000006.log").exists(), (
        "it would be replayed at version 6"
    )
    assert (out / "journal-000006.log.damaged").exists()
    with resumed(out) as run:
        assert run.notes == []


def test_a_run_without_an_intact_checkpoint_is_refused(
    whole: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    for path in (out / "checkpoints").iterdir():
        (path / "state.json").write_text('{"run": {}}')  # as it was without checksums
    with pytest.raises(
        ConfigError, match=r"none of the checkpoints can be used: .*6/st"
    ):
        state_in(out)
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(ConfigError, match="all checkpoints are missing; restore"):
        state_in(out)


def test_damaged_weights_are_not_evaluated(whole: Path, tmp_path: Path) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    load_model(TASK, find_weights(out, 3))
    file = find_weights(out, None)
    flip(file, file.stat().st_size - 1, 6)
    with pytest.raises(
        ConfigError, match=r"weights.safetensors is damaged: .*--version"
    ):
        load_model(TASK, file)


def test_serve_prints_what_was_damaged(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    flip(out / "checkpoints" / "000006" / "weights.safetensors", 999, 0)
    with resumed(out) as run:
        announce(run, "http://h:1", is_pinned=False)
    shown = capsys.readouterr()
    assert shown.err.startswith(
        f"Warning: {out}/checkpoints/000006/weights.safetensors"
    )
    assert "nothing is lost" in shown.err
    assert "Resumed at version 8" in shown.out


def test_a_worker_whose_token_was_lost_joins_again(whole: Path, tmp_path: Path) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    flip(out / "journal-000006.log", 10, 0)
    with server(out, rounds=9, workers=1, every=EVERY, what=TASK) as served:
        carl = WorkerClient(served.url, served.code, token="x" * 43)
        assert carl.http.get("/v1/work", headers=carl.headers).status_code == 401
        assert carl.join().status_code == 200
        carl.close()
