"""``python -m ringleader``: the ``ringleader`` command."""

from __future__ import annotations

import os
import sys

if not sys.flags.safe_path:
    # As the installed command: -m puts the current folder first, and a secrets.py or
    # cuda.py of a project must not replace the library's.
    sys.path[0] = os.path.dirname(sys.executable)

from ringleader.cli.main import app

app()
