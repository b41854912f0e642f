"""``Manifest``: the files of a project, with the SHA-256 of each of their chunks.

A manifest may come from another machine, so decoding checks it: names and links stay
below the folder that they are written to, on every system, and sizes agree with the
number of hashes. Contents are found by their hash alone, in a ``BlobStore``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Annotated

import msgspec

from ringleader.data.file_names import check_collisions, check_name
from ringleader.decoding import from_json

CHUNK_BYTES = 1 << 20
"""A chunk travels as one message and is written at once, so a broken connection costs
at most this much; hashing it holds up an event loop for about a millisecond."""
MAX_FILES = 20_000
MAX_MANIFEST_BYTES = 16 << 20
MAX_FILE_BYTES = 1 << 40

Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""SHA-256 in hexadecimal: the name of a chunk or a manifest in a store."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
"""A path below the project's folder, with ``/``."""


class ProjectFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plain file."""

    path: Name
    num_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]
    sha256: tuple[Digest, ...]
    """One for each chunk of ``CHUNK_BYTES``; the last chunk may be shorter."""
    is_executable: bool = False

    def chunks(self) -> Iterator[tuple[Digest, int]]:
        """Yield the hash and the length of each chunk."""
        left = self.num_bytes
        for digest in self.sha256:
            yield digest, min(CHUNK_BYTES, left)
            left -= CHUNK_BYTES


class ProjectLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A symbolic link to something in the same project."""

    path: Name
    target: Name
    """Relative to the folder of the link; ``..`` only at its beginning."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a project."""

    files: Annotated[tuple[ProjectFile, ...], msgspec.Meta(max_length=MAX_FILES)]
    links: Annotated[tuple[ProjectLink, ...], msgspec.Meta(max_length=MAX_FILES)] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.num_bytes for file in self.files)

    @property
    def digest(self) -> Digest:
        """SHA-256 of names, modes and contents: equal projects have equal digests."""
        return hashlib.sha256(encode(self)).hexdigest()

    def chunks(self) -> dict[Digest, int]:
        """Return hash -> length of the different chunks, in the order of the files."""
        return {digest: size for file in self.files for digest, size in file.chunks()}


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode(data: bytes) -> Manifest:
    """Return the manifest; raises ValueError unless it is one that can be unpacked."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"a list of files of {len(data)} bytes")
    try:
        found = from_json(data, Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"not a list of files ({exc})"[:200]) from None
    check(found)
    return found


def check(manifest: Manifest) -> None:
    """Raise ValueError if a name or link could leave its folder, on any system."""
    names = [file.path for file in manifest.files]
    names += [link.path for link in manifest.links]
    if len(names) > MAX_FILES:
        raise ValueError(f"{len(names)} files; at most {MAX_FILES} travel")
    for name in names:
        check_name(name)
    check_collisions(names)
    sizes: dict[str, int] = {}
    for file in manifest.files:
        if -(-file.num_bytes // CHUNK_BYTES) != len(file.sha256):
            raise ValueError(f"{file.path!r}: its size and its hashes disagree")
        for digest, size in file.chunks():
            if sizes.setdefault(digest, size) != size:
                raise ValueError(f"{file.path!r}: one hash for two sizes")
    if lost := links_out(manifest.links, names):
        raise ValueError(f"{lost[0]!r} is a link out of the project")


def links_out(links: Iterable[ProjectLink], names: Iterable[str]) -> list[str]:
    """Return the links that lead to none of these names, nor a folder above one."""
    known = set(names)
    known.update(str(up) for name in list(known) for up in PurePosixPath(name).parents)
    known.discard(".")
    return [x.path for x in links if link_destination(x.path, x.target) not in known]


def link_destination(path: str, target: str) -> str | None:
    """Return where a link leads, as a name in the project; None if it leads out.

    ``..`` counts only at the beginning of a target: there it is exact, because no name
    lies below a link. After another link it could lead anywhere.
    """
    folder = list(PurePosixPath(path).parts[:-1])
    parts = target.split("/")
    while parts and parts[0] == "..":
        if not folder:
            return None
        folder.pop()
        parts.pop(0)
    try:
        check_name("/".join(parts))
    except ValueError:  # empty, absolute, "..", a drive
        return None
    return "/".join((*folder, *parts))
