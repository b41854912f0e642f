"""Ray Train: workers of its own, so not under torchrun."""

from __future__ import annotations

import os
import sys

import ray
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch.utils.data import DataLoader

HERE = os.path.dirname(os.path.abspath(__file__))


def train() -> None:
    sys.path.insert(0, HERE)
    from report import digest, report
    from toy import examples, loss_of, network

    model = ray.train.torch.prepare_model(network())
    loader = ray.train.torch.prepare_data_loader(DataLoader(examples(), batch_size=8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    report(losses=losses, weights=digest(model))


names = ("ECOSYSTEM_OUT", "RINGLEADER_DEFAULT", "OMP_NUM_THREADS")
variables = {name: os.environ[name] for name in names if name in os.environ}
ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": variables})
backend = sys.argv[1]
TorchTrainer(
    train,
    torch_config=TorchConfig(backend=backend) if backend else None,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.environ["ECOSYSTEM_OUT"]),
).fit()
ray.shutdown()
