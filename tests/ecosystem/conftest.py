"""Collects nothing without the packages that `make test-ecosystem` installs."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("lightning") else ["test_*.py"]
