"""DataOrder: position, balance and ledger as a part of the replicated state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ringleader.errors import LayoutMismatch
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.progress import Progress


class DataOrder:
    """Holds the progress of a run; saved and loaded like a scheduler."""

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self.progress = Progress.first(spec)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"spec": asdict(self.spec), "progress": self.progress.to_plain()}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Take the progress of another member, which must have the same data.

        Raises LayoutMismatch if its data or batch sizes are others.
        """
        mine = asdict(self.spec)
        for name, theirs in values["spec"].items():
            if mine.get(name) != theirs:
                text = f"{name} is {mine.get(name)} here and {theirs} there"
                raise LayoutMismatch(f"elastic: {text}; use one script and one dataset")
        self.progress = Progress.from_plain(values["progress"], self.spec)
