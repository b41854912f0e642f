"""Runs a script in a rank as if it had been started by itself."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import sklearn.datasets  # noqa: F401 - what the examples need, imported once
import torch._dynamo  # noqa: F401 - torch does it when the first optimizer is made


def run_script(rank: int, size: int, path: str, *arguments: str) -> None:
    """Run a script in the environment that torchrun sets."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")
