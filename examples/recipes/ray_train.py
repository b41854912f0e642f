"""Ray Train: Ray starts the processes and makes the group; the program stays the same.

python examples/recipes/ray_train.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from train import train  # noqa: E402

ray.init(runtime_env={"working_dir": str(HERE)})
TorchTrainer(
    train,
    torch_config=TorchConfig(backend="ringleader"),
    scaling_config=ScalingConfig(num_workers=2),
).fit()
