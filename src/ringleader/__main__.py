"""``python -m ringleader``: the ``ringleader`` command."""

from __future__ import annotations

from ringleader.cli.main import app

app()
