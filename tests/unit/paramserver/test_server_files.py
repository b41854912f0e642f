"""Journals, checkpoints and keys are complete, or ignored."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.serialization import Encoding
from torch import nn

from ringleader.errors import ConfigError
from ringleader.identity import server_key
from ringleader.paramserver.server.global_weights import GlobalWeights
from ringleader.paramserver.server.storage import checkpoint, journal
from ringleader.paramserver.server.storage.checked_files import DamagedFile
from ringleader.paramserver.server.storage.journal import Journal
from ringleader.paramserver.server.storage.journal_records import Left
from ringleader.testing.full_disk import FullDisk


def workers(path: Path) -> list[str]:
    """The workers of the records in a journal, which are all of one kind."""
    records = [entry.record for entry in journal.read(path)]
    return [record.worker for record in records if type(record) is Left]


def end_of(path: Path) -> int:
    """The offset where the last good record ends."""
    return max((entry.end for entry in journal.read(path)), default=0)


def test_a_journal_ends_before_whatever_a_crash_left(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    log = Journal(path)
    log.begin()
    log.append(Left("one"), b"body" * 100)
    log.append(Left("two"))
    log.close()
    whole = path.read_bytes()
    first = journal._HEAD_BYTES + len(b'{"kind":"left","worker":"one"}') + 400
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        journal.end_path(path).unlink(missing_ok=True)
        kinds = workers(path)
        assert kinds == (["one"] if length >= first else [])
        assert bool(journal.doubt(path, end_of(path))) == (length not in (0, first))
    log = Journal(path)
    log.resume(end_of(path))  # cuts off the torn record
    log.append(Left("three"), b"x")
    log.close()
    found = [
        (name, entry[1])
        for name, entry in zip(workers(path), journal.read(path), strict=True)
    ]
    assert found == [("one", b"body" * 100), ("three", b"x")]


def test_a_journal_that_lost_its_end_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    log = Journal(path)
    log.begin()
    log.append(Left("one"), b"body" * 9)
    middle = log.num_bytes
    log.append(Left("two"))
    log.close()
    whole = path.read_bytes()
    for length in range(len(whole)):  # also between two records
        path.write_bytes(whole[:length])
        found: list[int] = []
        with pytest.raises(DamagedFile, match=f"was {len(whole)} bytes long"):
            found.extend(entry.end for entry in journal.read(path))
        assert found == ([middle] if length >= middle else [])
    path.write_bytes(whole + whole[: middle - 1])
    assert workers(path) == ["one", "two"], "a record that was never complete"
    assert journal.doubt(path, len(whole)) == ""


def test_nothing_is_appended_after_a_failed_record(tmp_path: Path) -> None:
    """Reading ends at a torn record, so a record after it would be lost."""
    path = tmp_path / "journal"
    log = Journal(path)
    log.begin()
    log.append(Left("one"))
    assert log._file is not None
    log._file = FullDisk(log._file, 30)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        log.append(Left("two"), bytes(50))
    with pytest.raises(ConfigError, match="a write failed"):
        log.append(Left("three"))
    log.close()
    again = Journal(path)
    again.resume(end_of(path))
    again.append(Left("four"))
    again.close()
    assert workers(path) == ["one", "four"]


def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for kind in ("old", "new"):
        log = Journal(path)
        log.begin()
        log.append(Left(kind))
        log.close()
    assert workers(path) == ["new"]


def test_damage_in_a_journal_is_told_from_its_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    log = Journal(path)
    log.begin()
    for i in range(3):
        log.append(Left(str(i)), bytes(50))
    log.close()
    whole = path.read_bytes()
    ends = [0, *(entry.end for entry in journal.read(path))]
    for place in range(len(whole)):  # whatever byte it is, also of lengths
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found: list[int] = []
        with pytest.raises(DamagedFile, match=r"byte \d+ of"):
            found.extend(entry.end for entry in journal.read(path))
        assert found == [end for end in ends[1:] if end <= place]
    assert list(journal.read(tmp_path / "none")) == []


def _train(weights: GlobalWeights, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in weights.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        weights.optimizer.step()
    weights.optimizer.zero_grad()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("kind", ["sgd", "adamw", "rmsprop"])
def test_a_checkpoint_restores_weights_and_optimizer(tmp_path: Path, kind: str) -> None:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        if kind == "sgd":
            return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        if kind == "adamw":
            return torch.optim.AdamW(model.parameters(), 0.01, betas=(0.8, 0.9))
        return torch.optim.RMSprop(model.parameters(), 0.01)

    weights = GlobalWeights(_model(), optimizer, is_difference=False)
    _train(weights, 3)
    checkpoint.write(tmp_path, 3, weights, {"run": {"version": 3}})
    other = GlobalWeights(_model(), optimizer, is_difference=False)
    (found,) = checkpoint.find_all(tmp_path)
    assert found.version == 3
    content = checkpoint.read(found)
    checkpoint.load(content, other)
    assert content.state["run"] == {"version": 3}
    for each in (weights, other):
        _train(each, 2)
    for one, two in zip(
        weights.model.state_dict().values(),
        other.model.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(one, two)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def test_old_checkpoints_and_what_crashes_left_are_removed(tmp_path: Path) -> None:
    weights = GlobalWeights(_model(), _sgd, is_difference=False)
    torn = tmp_path / checkpoint.FOLDER / ".new-dead"
    torn.mkdir(parents=True)
    (tmp_path / "journal-000000.log").write_bytes(b"")
    for version in range(checkpoint.KEEP + 3):
        checkpoint.write(tmp_path, version, weights, {})
    names = sorted(p.name for p in (tmp_path / checkpoint.FOLDER).iterdir())
    assert names == [f"{v:06d}" for v in range(3, checkpoint.KEEP + 3)]
    assert not (tmp_path / "journal-000000.log").exists()
    assert (tmp_path / checkpoint.WEIGHTS).is_file()


def test_a_checkpoint_that_does_not_fit_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    weights = GlobalWeights(_model(), _sgd, is_difference=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        checkpoint.write(tmp_path, 1, weights, {})
    assert list((tmp_path / checkpoint.FOLDER).iterdir()) == []


def test_a_checkpoint_of_another_model_is_named_and_refused(tmp_path: Path) -> None:
    checkpoint.write(
        tmp_path, 1, GlobalWeights(_model(), _sgd, is_difference=False), {}
    )
    other = GlobalWeights(nn.Linear(2, 2), _sgd, is_difference=False)
    (found,) = checkpoint.find_all(tmp_path)
    with pytest.raises(ConfigError, match=r"000001.*another --out"):
        checkpoint.load(checkpoint.read(found), other)


def test_an_invalid_certificate_has_no_fingerprint(tmp_path: Path) -> None:
    key = server_key.load_or_make(tmp_path)
    der = server_key._certificate(key.key).public_bytes(Encoding.DER)
    assert server_key.fingerprint_of(der) == key.fingerprint
    version_3 = bytes.fromhex("a003020102")
    assert version_3 in der
    version_8 = der.replace(version_3, bytes.fromhex("a003020107"), 1)
    for wrong in (b"", der[:-5], version_8):
        with pytest.raises(ValueError, match=r"."):
            server_key.fingerprint_of(wrong)


def test_the_key_of_a_server_stays_the_same_and_private(tmp_path: Path) -> None:
    first = server_key.load_or_make(tmp_path)
    again = server_key.load_or_make(tmp_path)
    assert first.fingerprint == again.fingerprint
    assert first.secret == again.secret
    path = tmp_path / server_key.FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"{}")
    with pytest.raises(ConfigError, match="damaged"):
        server_key.load_or_make(tmp_path)
