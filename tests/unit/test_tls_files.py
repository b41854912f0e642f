"""The user's certificates, named by options or by the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.settings.tls_files import OPTIONS, VARIABLES, TlsFiles, tls_files

FILES = TlsFiles(Path("/ca"), Path("/cert"), Path("/key"))


def test_options_come_before_the_environment() -> None:
    env = dict(zip(VARIABLES, ("/a", "/b", "/c"), strict=True))
    assert tls_files(FILES.ca, FILES.cert, FILES.key, env=env) == FILES
    assert tls_files(env=env) == TlsFiles(Path("/a"), Path("/b"), Path("/c"))
    assert tls_files(env=FILES.environment()) == FILES
    assert tls_files(env=dict.fromkeys(VARIABLES, "")) is None


@pytest.mark.parametrize("missing", range(3))
def test_all_three_or_none(missing: int) -> None:
    given = [FILES.ca, FILES.cert, FILES.key]
    env = {
        name: str(path)
        for i, (name, path) in enumerate(zip(VARIABLES, given, strict=True))
        if i != missing
    }
    with pytest.raises(ConfigError, match=f"{VARIABLES[missing]} missing: give all"):
        tls_files(env=env)
    options = [path if i != missing else None for i, path in enumerate(given)]
    with pytest.raises(ConfigError, match=f"{OPTIONS[missing]} missing: give all"):
        tls_files(*options, env={})
