"""Callbacks that hand the numbers of Lightning and Transformers to the dashboard.

The libraries are imported only by the function that makes their callback.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, SupportsFloat

from ringleader.dashboard.log import log_numbers


def lightning_callback() -> Any:  # noqa: ANN401 - a class of a library that may be missing
    """Return a callback for ``lightning.Trainer(callbacks=[...])``.

    After each batch it logs what the module has given to ``self.log``.
    """
    base = import_module("lightning.pytorch").Callback

    def on_train_batch_end(
        _self: object,
        trainer: Any,  # noqa: ANN401
        *_: object,
        **__: object,
    ) -> None:
        log_numbers(_numbers(trainer.callback_metrics), trainer.global_step)

    hooks = {"on_train_batch_end": on_train_batch_end}
    return type("RingleaderLog", (base,), hooks)()


def transformers_callback() -> Any:  # noqa: ANN401 - as above
    """Return a callback for ``transformers.Trainer(callbacks=[...])``.

    It logs what the trainer logs, every ``logging_steps``.
    """
    base = import_module("transformers").TrainerCallback

    def on_log(
        _self: object,
        _args: object,
        state: Any,  # noqa: ANN401
        _control: object,
        logs: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        log_numbers(_numbers(logs or {}), state.global_step)

    return type("RingleaderLog", (base,), {"on_log": on_log})()


def _numbers(found: Mapping[str, object]) -> dict[str, SupportsFloat]:
    """Return what is a number; libraries log texts, too."""
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, SupportsFloat) and not isinstance(value, str)
    }
