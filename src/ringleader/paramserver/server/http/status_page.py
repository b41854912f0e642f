"""The status page: files of its own, and those that it shares with the dashboard."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.responses import Response

from ringleader.dashboard.assets import TYPES, load_assets
from ringleader.dashboard.http_message import SECURITY_HEADERS

_OWN = {"/": "server_page.html", "/server_page.js": "server_page.js"}
_SHARED = ("/style.css", "/format.js", "/icon.svg")

PATHS = (*_OWN, *_SHARED)
"""Everything that the page loads, besides ``/v1/status``."""


def respond(path: str) -> Response:
    """Return one of the files, with a policy that lets nothing else run or load."""
    kind, content = _load(path)
    return Response(content, media_type=kind, headers=SECURITY_HEADERS)


@cache
def _load(path: str) -> tuple[str, bytes]:
    if path in _SHARED:
        return load_assets()[path]
    name = _OWN[path]
    kind = TYPES[name.rpartition(".")[2]]
    return kind, files(__package__).joinpath(name).read_bytes()
