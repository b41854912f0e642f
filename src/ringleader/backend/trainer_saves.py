"""What Hugging Face's Trainer saves, once rank 0 is lost.

It writes models and checkpoints on rank 0 only: without it, hours of training by the
others would end without a file. The lowest rank that is alive writes them instead.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringleader.backend.living_collectives import Living

_log = logging.getLogger(__name__)
_MARK = "_ringleader_survives"


def install(survivors: Living, rank: int) -> None:
    """Let this rank save what rank 0 would have, if it is the lowest that is left."""
    told: list[int] = []

    def stands_in() -> bool:
        if rank == 0 or rank != min(survivors.contributors):
            return False
        if not told:
            told.append(rank)
            text = "ringleader: rank 0 was lost; rank %d saves what Trainer saves"
            _log.warning(text, rank)
        return True

    _extend_trainer(stands_in)
    _extend_model(stands_in)


def _extend_trainer(stands_in: Callable[[], bool]) -> None:
    kind = _find("transformers.training_args", "TrainingArguments")
    original = getattr(kind, "should_save", None)
    if not isinstance(original, property) or hasattr(original.fget, _MARK):
        return

    def should_save(arguments: object) -> bool:
        return original.__get__(arguments) or stands_in()

    setattr(should_save, _MARK, True)
    kind.should_save = property(should_save)


def _extend_model(stands_in: Callable[[], bool]) -> None:
    """Let ``save_pretrained`` write, which some releases end but on rank 0."""
    kind = _find("transformers.modeling_utils", "PreTrainedModel")
    original = getattr(kind, "should_save_on_this_rank", None)
    if original is None or hasattr(original, _MARK):
        return

    @wraps(original)
    def should_save_on_this_rank(model: object, is_main_process: bool) -> bool:
        return original(model, is_main_process) or (is_main_process and stands_in())

    setattr(should_save_on_this_rank, _MARK, True)
    kind.should_save_on_this_rank = should_save_on_this_rank


def _find(module: str, name: str) -> Any:
    """Return a class of a module that the script has imported, or None."""
    return getattr(sys.modules.get(module), name, None)
