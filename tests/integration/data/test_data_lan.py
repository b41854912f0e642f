"""Two machines, one of which has the data: both train on the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from ringleader.data.listing import CHUNK_BYTES
from ringleader.simulation.lan import can_make_lan, lan
from tests.kit.machines import Machines
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]

SCRIPT = """
import hashlib, os, numpy as np, torch, ringleader
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

dist.init_process_group("ringleader")
path = ringleader.fetch(os.environ["DATA"])
rows = (path / "rows.npy").read_bytes()
print("fetched", path, hashlib.sha256(rows).hexdigest(), flush=True)
rows = torch.from_numpy(np.load(path / "rows.npy"))
has_it = str(path) == os.environ["DATA"]
data = ringleader.dataset(TensorDataset(rows) if has_it else None)
plain = nn.Linear(rows.shape[1], 1, bias=False, dtype=torch.float64)
model = DistributedDataParallel(plain)
batches = ringleader.shard(data, 50, num_workers=1)
total = torch.zeros(rows.shape[1], dtype=torch.float64)
for (batch,) in batches:
    model.zero_grad()
    # A sum, scaled so that DDP's mean over two ranks is the sum over all samples.
    (2 * model(batch)).sum().backward()
    total += plain.weight.grad[0]
print("total", hashlib.sha256(total.numpy().tobytes()).hexdigest(), flush=True)
dist.destroy_process_group()
"""


def test_both_machines_train_on_the_data_of_one(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    rows = np.random.default_rng(0).integers(0, 99, (333, 2000)).astype(np.float64)
    assert rows.nbytes > CHUNK_BYTES
    there = tmp_path / "machine0" / "data"
    there.mkdir(parents=True)
    np.save(there / "rows.npy", rows)
    data = (there / "rows.npy").read_bytes()
    with lan(hosts=2, rate="1gbit") as net:
        machines = Machines(net, tmp_path, warm_python)
        try:
            commands = [
                machines.run(
                    index,
                    *("--nodes", "2", str(tmp_path / "train.py")),
                    DATA=str(tmp_path / f"machine{index}" / "data"),
                    RINGLEADER_CACHE=str(tmp_path / f"machine{index}" / "cache"),
                )
                for index in range(2)
            ]
            for command in commands:
                assert command.end() == 0, "".join(command.lines)
        finally:
            machines.close()
    expected = torch.from_numpy(rows).sum(dim=0)
    digest = hashlib.sha256(expected.numpy().tobytes()).hexdigest()
    for index, command in enumerate(commands):
        said = "".join(command.lines)
        place = there if index == 0 else tmp_path / "machine1" / "cache" / "files"
        assert f"fetched {place}" in said
        assert hashlib.sha256(data).hexdigest() in said
        assert f"total {digest}" in said, said
    assert not [*(tmp_path / "machine1" / "cache" / "items").iterdir()]
