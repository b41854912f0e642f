"""The files of the page; they are small and read once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def load_assets() -> dict[str, tuple[str, bytes]]:
    """Return path -> content type and content of everything that the page loads."""
    found = {}
    for file in (files("ringleader.dashboard") / "assets").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in TYPES:
            found[f"/{file.name}"] = (TYPES[kind], file.read_bytes())
    found["/"] = found["/index.html"]
    return found
