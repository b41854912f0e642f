"""RRef: a reference to a value that another rank keeps."""

from __future__ import annotations

from typing import Any, Never, Protocol

from ringleader.errors import ConfigError
from ringleader.rpc.messages import Reference


class Holder(Protocol):
    """Interface an RRef needs from its endpoint."""

    rank: int

    def name_of(self, rank: int) -> str:
        """Return the name of a rank."""
        ...

    def fetch(self, reference: Reference, timeout: float | None) -> Any:  # noqa: ANN401
        """Return the value, from wherever it is."""
        ...

    def local_value(self, reference: Reference, timeout: float | None) -> Any:  # noqa: ANN401
        """Return the value itself, on its owner."""
        ...

    def forget(self, reference: Reference) -> None:
        """End the use of an RRef; called by the garbage collector, never blocks."""
        ...


class RRef:
    """A reference to a value that its owner keeps as long as an RRef to it exists.

    ``remote()`` and ``rref()`` make them. They can be arguments and results of calls.
    """

    __slots__ = ("__weakref__", "_holder", "reference")

    def __init__(self, holder: Holder, reference: Reference) -> None:
        self._holder = holder
        self.reference = reference

    def owner(self) -> int:
        """Return the rank that keeps the value."""
        return self.reference.owner

    def owner_name(self) -> str:
        """Return the name of the rank that keeps the value."""
        return self._holder.name_of(self.reference.owner)

    def is_owner(self) -> bool:
        """Return whether this process keeps the value."""
        return self.reference.owner == self._holder.rank

    def to_here(self, timeout: float | None = None) -> Any:  # noqa: ANN401
        """Return the value, or a copy of it if another rank keeps it.

        Waits until the function that makes the value has ended, and raises RemoteError
        if it failed. Raises PeerRefused if the owner does not have the value any more.
        """
        return self._holder.fetch(self.reference, timeout)

    def local_value(self, timeout: float | None = None) -> Any:  # noqa: ANN401
        """Return the value itself, not a copy; ConfigError if another rank keeps it."""
        return self._holder.local_value(self.reference, timeout)

    def belongs_to(self, holder: Holder) -> bool:
        """Return whether it is a reference of this endpoint."""
        return self._holder is holder

    def __copy__(self) -> RRef:
        return self  # a second object would be counted as one use, and dropped twice

    def __deepcopy__(self, memo: object) -> RRef:
        return self

    def __reduce__(self) -> Never:
        text = f"{self!r} cannot be pickled; send it as an argument of a call"
        raise ConfigError(f"rpc: {text}")

    def __repr__(self) -> str:
        return f"<{self.reference} of rank {self.reference.owner}>"

    def __del__(self) -> None:
        self._holder.forget(self.reference)
