"""What a server may ask of a worker: no more than was agreed when the worker joined.

Memory and time of a worker depend on the size of the batches, on the number of steps
and on the model. The model is the worker's own; these checks bound the other two.
"""

from __future__ import annotations

from ringleader.errors import ConfigError, ProtocolError
from ringleader.paramserver.protocol.messages import Assignment, JoinAnswer
from ringleader.paramserver.worker.http_errors import SERVER

MAX_BATCH_RATIO = 64
"""Largest batch that a worker agrees to, as a multiple of its task's own batch size."""


def check_join(answer: JoinAnswer, task_batch_size: int, max_batch_size: int) -> None:
    """Raise ConfigError if the run has larger batches than this worker agrees to.

    ``max_batch_size`` is the user's limit; 0: a multiple of the task's batch size.
    """
    limit = max_batch_size or MAX_BATCH_RATIO * task_batch_size
    if answer.batch_size > limit:
        text = f"the server wants batches of {answer.batch_size} samples, above {limit}"
        how = f"allow it with --max-batch-size {answer.batch_size}"
        raise ConfigError(f"{text}; {how}, if this machine has the memory")


def check_rejoin(agreed: JoinAnswer, answer: JoinAnswer) -> None:
    """Raise ProtocolError if a later join asks for more than the first one did."""
    _check(agreed, batch_size=answer.batch_size, steps=answer.steps)


def check_assignment(agreed: JoinAnswer, assignment: Assignment) -> None:
    """Raise ProtocolError if an assignment asks for more than was agreed."""
    _check(agreed, batch_size=assignment.batch_size, steps=assignment.steps)


def _check(agreed: JoinAnswer, *, batch_size: int, steps: int) -> None:
    for what, asked, limit in (
        ("batches of {} samples", batch_size, agreed.batch_size),
        ("{} steps at once", steps, agreed.steps),
    ):
        if asked > limit:
            text = f"it wants {what.format(asked)}, but {limit} was agreed at joining"
            raise ProtocolError(SERVER, f"{text}; start the worker again to agree anew")
