"""Names of files that come from another machine: none may leave its folder.

The rules hold for every system at once, so that what one machine may send every other
one can write: Linux, macOS and Windows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_MAX_NAME_BYTES = 1024
_MAX_PART_BYTES = 255
_FORBIDDEN = re.compile(r'[\x00-\x1f\\:*?"<>|]')
"""Characters that some system reads as a separator, a drive or a wildcard."""
_DEVICES = {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"} | {
    f"{port}{n}" for port in ("COM", "LPT") for n in "123456789\u00b9\u00b2\u00b3"
}
"""Names that mean a device on Windows, with any ending."""


def check_name(name: str) -> None:
    """Raise ValueError unless a name stays below its folder on every system."""
    shown = repr(name[:80])
    try:
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise ValueError(f"the name {shown}... is too long")
    except UnicodeEncodeError:
        raise ValueError(f"the name {shown} is not valid text") from None
    if _FORBIDDEN.search(name):
        raise ValueError(f"the name {shown} has a character that is not portable")
    for part in name.split("/"):
        if part in ("", ".", "..") or len(part.encode()) > _MAX_PART_BYTES:
            raise ValueError(f"the name {shown} is not allowed")
        if part[-1] in ". " or part.partition(".")[0].rstrip().upper() in _DEVICES:
            # Windows ignores dots and spaces at the end: ".. " is "..".
            raise ValueError(f"the name {shown} is not allowed on Windows")


def is_text(name: str) -> bool:
    """Return whether a name is valid UTF-8; Python reads other bytes as surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def check_collisions(names: Sequence[str]) -> None:
    """Raise ValueError if two names are one on a disk that ignores case or accents'
    spelling, as macOS does, or if one lies below another."""
    folded = {_folded(name) for name in names}
    if len(folded) != len(names):
        raise ValueError("two names differ in upper and lower case only")
    for name in folded:
        parts = name.split("/")
        if any("/".join(parts[:n]) in folded for n in range(1, len(parts))):
            raise ValueError(f"{name[:80]!r} lies below a file")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
