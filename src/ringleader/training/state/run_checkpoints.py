"""RunCheckpoints: checkpoints of an elastic run, from which a dead cluster resumes.

``stage`` copies the state between two steps. It is written when the step is known to
stay in the history, which is one step later; so no checkpoint is ever of a step that
the run has taken back. Two members write it in full, each to its own disk: any one of
them can resume alone. They are the first two that computed something in that step, for
only their loops get to ``run.checkpoint()``. If it was only one, another copies the
version before it applies the next one. The format is that of ``ringleader.checkpoint``.

After a power cut every machine reads its newest complete checkpoint before it joins
the first view. The step protocol then takes the history with the most samples, and the
others adopt its state.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import msgspec

from ringleader.checkpoint.background_save import BackgroundSaver
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.load import load_state
from ringleader.checkpoint.save import KEEP, Saved
from ringleader.checkpoint.training_state import State, collect
from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.membership.steps.attempt import Attempt, Chain, LineageName, Version
from ringleader.membership.steps.step_member import StepMember
from ringleader.training.data.balance import Flag, Report
from ringleader.training.kill_points import reach
from ringleader.training.state import value_tree
from ringleader.training.state.replicated_state import ReplicatedState

_log = logging.getLogger(__name__)

COPIES: Final = 2
"""Members that write a checkpoint, each all of it."""

_HISTORY = "run"
_EXTRA = "extra"


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run stands: what ``StepMember`` knows about its delivered steps."""

    version: Version
    samples: int
    lineage: LineageName = ""
    chain: Chain = b""
    chain_before: Chain = b""
    last: Attempt | None = None

    @classmethod
    def of(cls, step: StepMember) -> History:
        """Return what ``step`` knows; the caller holds its lock."""
        return cls(
            step.version,
            step.samples,
            step.lineage,
            step.chain,
            step.chain_before,
            step.last,
        )


def writers(contributors: Sequence[NodeId]) -> Sequence[NodeId]:
    """Return who saves a version, of the members that computed something in it."""
    return contributors[:COPIES]


def is_writer_too(node: NodeId, reports: Mapping[NodeId, Report]) -> bool:
    """Return whether a member saves a version because too few others have.

    ``reports`` are those of the step after it, in ring order.
    """
    saved = [n for n, report in reports.items() if Flag.SAVED in report.flags]
    others = [n for n in reports if n not in saved]
    return bool(saved) and node in others[: max(0, COPIES - len(saved))]


@dataclass(frozen=True, slots=True)
class _Staged:
    history: History
    state: State


class RunCheckpoints:
    """The checkpoints that one member writes. For the user's thread."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        state: ReplicatedState,
        node: str,
        *,
        keep: int = KEEP,
    ) -> None:
        self._folder = folder
        self._state = state
        self._node = node
        self._keep = keep
        self._saver = BackgroundSaver(ByteExchange(None))
        self._writing: Future[Saved] | None = None
        self._staged: _Staged | None = None

    def restore(self) -> History | None:
        """Load the newest complete checkpoint of this machine; None if there is none.

        Call it before the first view, and not in a process that joins a running
        cluster. Raises as ``ringleader.checkpoint.load`` does.
        """
        others: dict[str, object] = dict(self._state.others)
        targets = (self._state.model, self._state.optimizer)
        loaded = load_state(self._folder, targets, others, ByteExchange(None))
        if loaded is None:
            return None
        try:
            history = msgspec.convert(
                loaded.values[_HISTORY], History, builtin_types=(bytes,)
            )
        except (KeyError, msgspec.ValidationError) as exc:
            raise ConfigError(
                f"{loaded.path} is not a checkpoint of an elastic run ({exc}); load it "
                f"in your script before ringleader.elastic(), or give another folder"
            ) from None
        if self._state.extra is not None:
            value_tree.update_in_place(self._state.extra, loaded.values[_EXTRA])
        _log.info("resumed from %s: version %d", loaded.path, history.version)
        return history

    def stage(self, history: History) -> None:
        """Copy the state of the version that ``history`` is of.

        Waits for the checkpoint before, if that is still being written.
        """
        self._staged = None
        self._wait()
        others: dict[str, object] = dict(self._state.others)
        others[_HISTORY] = msgspec.to_builtins(history, builtin_types=(bytes,))
        if self._state.extra is not None:
            others[_EXTRA] = self._state.extra
        found = collect(self._state.model, self._state.optimizer, others, 0)
        self._staged = _Staged(history, self._saver.copied(found))

    def has_staged(self, version: int) -> bool:
        """Return whether this member has copied this version and not written it yet."""
        return self._staged is not None and self._staged.history.version == version

    def publish(self, stable_version: int, lineage: str) -> bool:
        """Begin to write the staged state, if its version is stable; True if it does.

        ``stable_version`` is the last version that stays in the history for good.
        """
        staged = self._staged
        if staged is None or stable_version < staged.history.version:
            return False
        self._staged = None
        state: Future[State] = Future()
        state.set_result(staged.state)
        version = staged.history.version
        name = f"{lineage}/{version}/{self._node}"
        self._writing = self._saver.start(
            self._folder,
            version,
            state,
            self._keep,
            hashlib.sha256(name.encode()).hexdigest()[:16],
        )
        reach("publish")
        return True

    def adopted(self) -> None:
        """Drop what was staged: this member has taken over another history."""
        self._staged = None

    def close(self, *, is_over: bool) -> None:
        """Wait until the last checkpoint is on the disk.

        Nobody continues a run that ``is_over``, so its last version is stable: what was
        staged is written then.
        """
        if is_over and self._staged is not None:
            history = self._staged.history
            self.publish(history.version, history.lineage)
        self._wait()

    def _wait(self) -> None:
        """Wait for the last write; its error was logged, training goes on."""
        if self._writing is not None:
            self._writing.exception()
            self._writing = None
