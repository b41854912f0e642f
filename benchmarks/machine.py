"""The machine and the versions of a measurement, for its result file."""

from __future__ import annotations

import os
import platform
import ssl
import time

import torch


def describe() -> dict[str, object]:
    """Return the date, the machine and the versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        "torch": torch.__version__,
    }
