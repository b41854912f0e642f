"""Rates of a rank, from what its metrics counted."""

from __future__ import annotations

import os
from pathlib import Path

from ringleader.metrics import catalog
from ringleader.metrics.registry import Registry
from ringleader.metrics.worker_files import write_file
from ringleader.monitoring.worker_traffic import TrafficReader, traffic
from ringleader.node.protocol.agent_config import metrics_directory


def test_the_longest_wait_and_rates_are_found() -> None:
    counted = Registry()
    counted.add(catalog.WAIT_SECONDS, 0.5, "1")
    counted.add(catalog.WAIT_SECONDS, 1.5, "2")
    counted.add(catalog.SENT_BYTES, 8e6, "1", "tcp", "tensors")
    counted.add(catalog.CODEC_RAW_BYTES, 4e6, "int8", "encode")
    counted.add(catalog.CODEC_CODED_BYTES, 1e6, "int8", "encode")
    found = traffic(0, counted.snapshot(), 2.0)
    assert (found.waits_for, found.wait_share) == (2, 0.75)
    assert (found.sent_bytes_per_s, found.compression) == (4e6, 4.0)
    alone = traffic(0, Registry().snapshot(), 2.0)
    assert (alone.waits_for, alone.compression) == (-1, 0.0)


def test_a_worker_belongs_to_the_job_whose_launcher_started_it(tmp_path: Path) -> None:
    folder = metrics_directory(tmp_path)
    counted = Registry()
    counted.add(catalog.WAIT_SECONDS, 1.0, "1")
    write_file(folder, "0", counted.snapshot())
    reader = TrafficReader(tmp_path)
    launcher = {"job": [tmp_path / "job" / str(os.getppid())]}
    assert reader.read({}) == [], "no launcher of ours"
    assert reader.read(launcher) == [], "nothing to compare with yet"
    counted.add(catalog.WAIT_SECONDS, 1.0, "1")
    write_file(folder, "0", counted.snapshot())
    ((job, found),) = reader.read(launcher)
    assert (job, found.rank, found.waits_for) == ("job", 0, 1)
    ((_, again),) = reader.read(launcher)
    assert again == found, "until the worker publishes something new"
