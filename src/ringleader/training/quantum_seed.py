"""Seeds the random generators for each quantum: dropout is the same on any machine.

The seeds follow from (seed of the run, version, index of the quantum) alone.
"""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def quantum_seed(seed: int, version: int, quantum: int) -> int:
    """Return 64 bits for one quantum of one step."""
    text = f"{seed}/{version}/{quantum}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def seed_generators(value: int) -> None:
    """Seed Python's, NumPy's and torch's generators (of all devices in use).

    ``torch.manual_seed`` would also record a stack trace for each device that is not
    in use, a millisecond per quantum.
    """
    random.seed(value)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(value)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(value % (1 << 32))
