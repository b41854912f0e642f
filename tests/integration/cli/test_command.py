"""The ``ringleader`` command as a process."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_starts_without_importing_torch() -> None:
    """Torch takes seconds to import; help and predictions need none of it."""
    code = "import sys, ringleader.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
