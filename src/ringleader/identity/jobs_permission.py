"""The user's answer: may other machines of the cluster run programs here?"""

from __future__ import annotations

import msgspec

from ringleader.decoding import from_json
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import Home

FILE = "jobs_permission.json"
MAX_BYTES = 4096


class JobsPermission(msgspec.Struct, frozen=True):
    """An answer, which holds for one cluster only."""

    cluster: str
    """Title of the cluster."""
    allowed: bool


def load_permission(home: Home, cluster: str) -> bool | None:
    """Return the answer for ``cluster``; None if the user has not been asked."""
    found = home.read(FILE, MAX_BYTES)
    if found is None:
        return None
    try:
        answer = from_json(found.reveal(), JobsPermission)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # damaged: ask again
    return answer.allowed if answer.cluster == cluster else None


def store_permission(home: Home, cluster: str, *, allowed: bool) -> None:
    """Remember the answer for ``cluster``."""
    body = msgspec.json.encode(JobsPermission(cluster, allowed))
    with home.writing() as change:
        change.write(FILE, Secret(body))
