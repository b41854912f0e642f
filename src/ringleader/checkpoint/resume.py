"""``resume``: what a program asks when it starts, so that a restart continues.

The folder is that of ``ringleader run --checkpoint DIR`` (RINGLEADER_CHECKPOINT).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ringleader.checkpoint.group_adapters import AnyGroup
from ringleader.checkpoint.load import Loaded, find_complete, load_state
from ringleader.checkpoint.save import exchange_of
from ringleader.checkpoint.storage import open_storage
from ringleader.checkpoint.training_state import Optimizers
from ringleader.errors import ConfigError
from ringleader.settings.checkpoint import checkpoint_folder


@dataclass(frozen=True, slots=True)
class Resumable:
    """The newest complete checkpoint of the run."""

    folder: str
    step: int
    group: AnyGroup | None = None

    def load(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizers = None,
        **others: object,
    ) -> Loaded:
        """Load it, or an older one if it turns out to be damaged; see ``load``."""
        targets = (model, optimizer)
        loaded = load_state(self.folder, targets, others, exchange_of(self.group))
        if loaded is None:
            raise ConfigError(f"{self.folder}: its checkpoints were removed meanwhile")
        return loaded


def folder() -> str | None:
    """Return the folder of ``ringleader run --checkpoint``; None without one."""
    return checkpoint_folder() or None


def resume(*, group: AnyGroup | None = None) -> Resumable | None:
    """Return the newest complete checkpoint of the run; None if there is none.

    All ranks call it, after the process group was formed; ``group`` is as for ``save``.
    It is also None if the program was started without ``--checkpoint``.
    """
    root = folder()
    if root is None:
        return None
    found = find_complete(open_storage(root), exchange_of(group))
    return Resumable(root, found[0].listed.step, group) if found else None
