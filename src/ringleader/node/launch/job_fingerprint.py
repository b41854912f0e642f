"""What must be the same on all machines of a job, as this machine has it."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

from ringleader import settings
from ringleader.node.protocol.framing import PROTOCOL
from ringleader.node.protocol.node_state import Facts


def facts(script: str) -> Facts:
    """Of this machine; ``script`` is a path, or empty when it is not compared."""
    return Facts(
        script=_hash(script) if script else "",
        torch=version("torch").split(".", maxsplit=1)[0],
        ringleader=str(PROTOCOL),
        compress=settings.compress() or "none",
    )


def _hash(script: str) -> str:
    """Equal for equal programs, whatever their path and the platform's line ends."""
    text = Path(script).read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha256(text).hexdigest()[:16]
