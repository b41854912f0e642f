"""kill -9 of the server: nothing acknowledged is lost, nothing is applied twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))  # pytest's importlib mode leaves it out

from serve_kit import KNOWN, Friend, Lives, expected, server, weights_in

from ringleader.paramserver import journal

pytestmark = pytest.mark.timeout(115)

KILLS = 10


class Stubborn(threading.Thread):
    """A worker that repeats everything until it is answered."""

    def __init__(self, friend: Friend, acknowledged: list[tuple[int, int]]) -> None:
        super().__init__(name=f"friend {friend.nonce[:4]}")
        self.friend = friend
        self.acknowledged = acknowledged
        self.until_s = time.monotonic() + 90
        self.repeated = 0

    def run(self) -> None:
        while time.monotonic() < self.until_s:
            try:
                if not self.friend.token:
                    self.friend.join()
                if not self.step():
                    return
            except httpx2.TransportError:
                time.sleep(0.02)

    def step(self) -> bool:
        work = self.friend.work()
        if work is None or work["kind"] == "finished":
            return work is None
        while time.monotonic() < self.until_s:
            try:
                answer = self.friend.put(work)
            except httpx2.TransportError:
                time.sleep(0.02)
                continue
            assert answer.status_code in (200, 409), answer.text
            if answer.status_code == 200 and answer.json()["counted"]:
                self.repeated += "again" in answer.json()
                self.acknowledged.append((work["version"], work["shard"]))
            return True
        return False


@pytest.mark.parametrize(("mode", "workers"), [("bulk", 2), ("async", 1)])
def test_a_server_killed_ten_times_ends_with_the_same_weights(
    tmp_path: Path, mode: str, workers: int
) -> None:
    rounds = 60
    chance = random.Random(workers)
    points = sorted(chance.sample(range(1, rounds * workers - 5), KILLS))
    acknowledged: list[tuple[int, int]] = []
    replayed = 0
    with Lives(tmp_path, rounds=rounds, workers=workers, mode=mode) as lives:
        life = lives.next()
        assert life is not None
        url = f"http://127.0.0.1:{life.port}"
        friends = [
            Stubborn(Friend(url, lives.code), acknowledged) for _ in range(workers)
        ]
        for friend in friends:
            friend.start()
        for point in points:
            while len(acknowledged) < point:
                time.sleep(0.0005)
                assert any(friend.is_alive() for friend in friends)
            time.sleep(chance.random() * 0.01)
            os.kill(life.pid, signal.SIGKILL)
            life = lives.next()
            assert life is not None, "it did not start again"
            replayed += life.replayed
        for friend in friends:
            friend.join(90)
            friend.friend.close()
            assert not friend.is_alive()
        assert lives.next() is None
    assert len(set(acknowledged)) == len(acknowledged) == rounds * workers
    assert replayed > 0
    np.testing.assert_allclose(
        weights_in(tmp_path), expected(rounds, workers), atol=1e-4
    )


@pytest.mark.parametrize("mode", ["bulk", "async"])
def test_a_life_that_ends_after_any_record_is_gone_on_with(
    tmp_path: Path, mode: str
) -> None:
    """Every counted update of one worker makes a version: also one that was recorded
    when the server died before it could say so.
    """
    rounds = 5
    with server(tmp_path / "whole", rounds=99, mode=mode, every=99) as life:
        with life.friends(1) as (friend,):
            for _ in range(rounds):
                friend.step()
        path = life.training.store.journal_path
        records = list(journal.read(path))
    for kept in range(len(records) + 1):
        out = tmp_path / str(kept)
        shutil.copytree(tmp_path / "whole", out)
        cut = journal.Journal(out / path.name)
        (out / path.name).unlink()
        cut.open()
        for meta, body in records[:kept]:
            cut.append(meta, body)
        cut.close()
        updates = sum(meta["kind"] == "update" for meta, _ in records[:kept])
        with server(out, rounds=99, mode=mode, every=99) as life:
            assert life.training.versions.version == updates
            weights = KNOWN.values(life.training.store.weights.model)
        np.testing.assert_allclose(weights, expected(updates, 1), atol=1e-5)
