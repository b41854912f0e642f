"""ElasticRun: the training loop that survives the loss of machines.

Iterating yields this machine's quanta. ``backward`` adds a quantum to the contribution,
``step`` reduces, delivers and applies when all quanta of the step are there. Views
change only here, on the user's thread: in ``step`` and in ``__next__``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from ringleader.engine.observer import now_s
from ringleader.errors import ConfigError, RunError
from ringleader.groups.caller_observer import installed
from ringleader.ids import NodeId
from ringleader.training.contribution import Contribution
from ringleader.training.data.ledger import Ledger
from ringleader.training.kill_points import reach
from ringleader.training.quantum_seed import quantum_seed, seed_generators
from ringleader.training.state.run_checkpoints import writers
from ringleader.training.team import Team


class ElasticRun:
    """A run of ``ringleader.elastic``, on one machine. For one thread."""

    def __init__(self, team: Team, contribution: Contribution, seed: int) -> None:
        self._team = team
        self._contribution = contribution
        self._seed = seed
        self._began_s = 0.0
        self._is_finished = False

    # -- the loop --------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - whatever the dataset holds
        """Return the next quantum of this machine."""
        if self._contribution.step.current is not None:
            text = "elastic: run.backward(loss) was not called for the last quantum"
            raise ConfigError(text)
        self._leave_if_asked()
        with self._closed_by_errors():
            self._team.follow()
        loaded = None
        while loaded is None:
            self._complete_steps_without_work()
            reach("compute")
            self._began_s = now_s()
            with self._team.events.loading():
                loaded = self._team.next_quantum()
        self._team.events.begin_quantum()
        self._contribution.begin_quantum()
        index = loaded.quantum.index
        seed_generators(quantum_seed(self._seed, self.version, index))
        return loaded.batch

    def backward(self, loss: Tensor, *, weight: float | None = None) -> None:
        """Add the gradient of ``loss``, a mean over the quantum, with its exact weight.

        ``weight`` is by default the number of samples; give the number of tokens if the
        loss is a mean over tokens.
        """
        quantum = self._contribution.step.current
        if quantum is None:
            raise ConfigError("elastic: run.backward(loss) belongs to one quantum")
        if not self._contribution.step.pending:
            self._team.start_reduction()
        weight = float(quantum.num_samples) if weight is None else float(weight)
        self._contribution.backward(loss, weight)
        if loss.is_cuda:
            torch.cuda.synchronize(loss.device)
        took_s = now_s() - self._began_s
        self._contribution.end_quantum(weight, took_s)
        self._team.events.end_quantum(took_s)
        if installed.observer is not None:
            installed.observer.phase_ended("quantum", self._began_s)

    def _complete_steps_without_work(self) -> None:
        """Take part in steps until this machine has a quantum to compute."""
        while not self._contribution.step.pending:
            if self._is_finished or self._team.is_over:
                self.close()
                raise StopIteration
            with self._closed_by_errors():
                self._team.complete_step()
            self._leave_if_asked()

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """Leave the run if this member cannot be in it any longer."""
        try:
            yield
        except RunError:
            self.close()
            raise

    def _leave_if_asked(self) -> None:
        """End the process after SIGTERM, once the others can go on without it."""
        if self._team.events.must_leave:
            self.close()
            self._team.events.terminate()

    def step(self) -> bool:
        """Return True when a step of all machines was delivered and applied here.

        Does nothing while quanta of this machine are left. False after the loss of a
        machine means that its quanta follow.
        """
        if self._contribution.step.current is not None:
            raise ConfigError("elastic: call run.backward(loss) before run.step()")
        with self._closed_by_errors():
            return self._team.complete_step()

    def checkpoint(self) -> None:
        """Save the run; call it on all machines, when ``step`` has returned True.

        Two of them write it in the background, one step later. Raises ConfigError if
        there is no folder for checkpoints.
        """
        step = self._contribution.step
        if step.current is not None or step.done:
            text = "elastic: call run.checkpoint() when run.step() has returned True"
            raise ConfigError(f"{text}, before the next quantum")
        checkpoints = self._team.checkpoints
        if checkpoints is None:
            text = "elastic: there is no folder for checkpoints; start the program with"
            raise ConfigError(f"{text} --checkpoint DIR, or pass checkpoint=DIR")
        if self._team.node in writers(self._team.contributors):
            checkpoints.stage(self._team.history())

    # -- what users look at ----------------------------------------------------------

    @property
    def version(self) -> int:
        """Steps that were delivered and applied."""
        return self._team.version

    @property
    def members(self) -> tuple[NodeId, ...]:
        """The machines of the run as of now, in ring order."""
        return self._team.nodes

    @property
    def contributors(self) -> tuple[NodeId, ...]:
        """The machines whose samples are in the last step."""
        return self._team.contributors

    @property
    def is_leader(self) -> bool:
        """True on exactly one machine of the run, for work that one has to do."""
        return self._team.rank == 0

    def ledger(self) -> Ledger:
        """Return which samples were delivered in which version, computed by whom."""
        return self._team.progress.ledger

    def log(self, **values: object) -> None:
        """Print one line with these values, on one machine of the run."""
        if self.is_leader:
            words = [f"{name} {_text(value)}" for name, value in values.items()]
            names = f"{len(self.members)} machine{'s' * (len(self.members) > 1)}"
            print(f"step {self.version}: {', '.join(words)} ({names})", flush=True)  # noqa: T201

    def close(self) -> None:
        """Leave the run, after the others have what they need from here. Idempotent."""
        if not self._is_finished:
            self._is_finished = True
            self._team.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _text(value: object) -> str:
    number = value.item() if isinstance(value, Tensor) else value
    return f"{number:.6g}" if isinstance(number, float) else str(number)
