"""Trains one case of ``low_communication.py``: workers, rounds, and the outer step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import torch
from low_communication_cases import Case
from low_communication_problems import Problem
from torch import Tensor, nn

from ringleader.codec.codec import Codec
from ringleader.codec.registry import make_codec
from ringleader.codec.sparse_chunks import SparseChunks
from ringleader.rounds.outer_step import OuterStep, Vector
from ringleader.rounds.round_length import late_weight, split_by_speed
from ringleader.rounds.round_mean import RoundMean

ROUND = 50
"""Steps of a round; with other lengths there are more rounds of the same samples."""
WARM_UP = 100
DECAY = 0.95
"""Share of the residual that SparseLoCo keeps."""


def train(case: Case, problem: Problem, seed: int, rounds: int) -> float:
    """Return the test loss, or the accuracy, at the end."""
    torch.set_num_threads(1)
    # oneDNN is three times as slow as OpenBLAS for such small matrices, on ARM.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    total = rounds * ROUND
    if not case.steps:
        return _train_synchronously(case, problem, seed, total)
    return Simulation(case, problem, seed, total).run()


def _train_synchronously(case: Case, problem: Problem, seed: int, total: int) -> float:
    worker = Worker(case, problem, seed, problem.batch)
    samples = sample_order(len(problem.train[0]), seed)
    for step in range(total):
        worker.step(samples, schedule(step, total))
    return problem.result(worker.model)


def schedule(step: float, total: int) -> float:
    """Return the factor of the learning rate: warm-up, then a cosine to 0."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / (total - WARM_UP)))


def sample_order(count: int, seed: int) -> Iterator[int]:
    """Yield samples without end, each epoch in an order of its own."""
    chance = np.random.RandomState(seed)
    while True:
        yield from chance.permutation(count)


class Worker:
    """A model with AdamW, whose state stays from round to round."""

    def __init__(self, case: Case, problem: Problem, seed: int, batch: int) -> None:
        self.model = problem.seeded_model(seed)
        self._problem, self._lr, self._batch = problem, case.lr, batch
        self._parameters = list(self.model.parameters())
        self._rate = torch.zeros((), device=problem.device)
        self._chosen = torch.zeros(batch, dtype=torch.long, device=problem.device)
        self._adam = torch.optim.AdamW(
            self._parameters,
            lr=self._rate,
            betas=(0.9, case.beta2),
            weight_decay=0.01,
            fused=True,
            capturable=problem.device == "cuda",
        )
        self._make_step = self._compute
        if problem.device == "cuda":
            self._make_step = captured(self._compute)
            self._forget_trial_steps()

    def step(self, samples: Iterator[int], factor: float) -> None:
        """Make one step with the next samples."""
        chosen = [next(samples) for _ in range(self._batch)]
        self._chosen.copy_(torch.tensor(chosen))
        self._rate.fill_(self._lr * factor)
        self._make_step()

    def _compute(self) -> None:
        self._adam.zero_grad(set_to_none=False)
        loss: Tensor = self._problem.loss(self.model, self._chosen)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters, 1.0, foreach=True)
        self._adam.step()

    @torch.no_grad()
    def _forget_trial_steps(self) -> None:
        """Reset AdamW after steps of rate 0, which changed no parameter."""
        for state in self._adam.state.values():
            for value in state.values():
                value.zero_()

    @torch.no_grad()
    def values(self) -> Vector:
        """Copy the parameters to one vector."""
        return torch.cat([p.flatten() for p in self._parameters]).cpu().numpy()

    @torch.no_grad()
    def load(self, values: Vector) -> None:
        """Set the parameters."""
        sizes = [p.numel() for p in self._parameters]
        parts = torch.from_numpy(values).to(self._problem.device).split(sizes)
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))


def captured(compute: Callable[[], None]) -> Callable[[], None]:
    """Record a computation of the GPU once, and return what repeats it."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            compute()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()
    return graph.replay


class Simulation:
    """Workers that exchange differences once per round."""

    def __init__(self, case: Case, problem: Problem, seed: int, total: int) -> None:
        self._case, self._problem, self._total = case, problem, total
        self._batch = problem.batch // case.workers
        self._workers = [
            Worker(case, problem, seed, self._batch) for _ in range(case.workers)
        ]
        self._samples = sample_order(len(problem.train[0]), seed)
        self._outer = Outer(case, self._workers[0].values())

    def run(self) -> float:
        """Train, and return the result."""
        begin = 0
        while begin < self._total:
            steps = min(self._case.steps, self._total - begin)
            self._round(begin, steps)
            begin += steps
        return self._problem.result(self._workers[0].model)

    def _round(self, begin: int, steps: int) -> None:
        shares = self._shares(begin / self._total, steps)
        start = self._outer.parameters
        differences = {}
        for number, (worker, share) in enumerate(
            zip(self._workers, shares, strict=True)
        ):
            for i in range(share):
                at = begin + i * steps / share
                worker.step(self._samples, schedule(at, self._total))
            if share:
                differences[number] = start - worker.values()
        self._outer.exchange(differences, {w: shares[w] for w in differences})
        for worker in self._workers:
            worker.load(self._outer.parameters)

    def _shares(self, begun: float, steps: int) -> list[int]:
        """Return the local steps of each worker; 0: it is away."""
        case = self._case
        if case.leaves and 1 / 3 <= begun < 2 / 3:
            return [2 * steps, 2 * steps, 0, 0]
        return split_by_speed(steps * case.workers, case.speeds[: case.workers])


class Outer:
    """The shared parameters, and what moves them."""

    def __init__(self, case: Case, start: Vector) -> None:
        self.case = case
        self.parameters = start.copy()
        self._velocity = np.zeros_like(start)
        self._step = OuterStep(case.outer_rate, case.outer_momentum)
        self._tensor = torch.from_numpy(self.parameters)
        self._adam = torch.optim.Adam(
            [self._tensor], lr=case.outer_rate, betas=(0.9, 0.99)
        )
        self._residuals = [np.zeros_like(start) for _ in range(case.workers)]
        self._codec = _codec(case.codec)
        self._waiting: list[deque[Vector]] = [deque() for _ in range(case.workers)]

    def sent(self, worker: int, difference: Vector) -> Vector:
        """Return what the others decode of a difference; keep the rest."""
        if self._codec is None:
            return difference
        residual = self._residuals[worker]
        decay = DECAY if self.case.codec == "sparseloco" else 1.0
        wanted = difference + np.float32(decay) * residual
        data = np.empty(self._codec.num_bytes(len(wanted)), np.uint8)
        self._codec.encode(wanted, data, residual)
        return wanted - residual

    def exchange(self, differences: dict[int, Vector], tokens: dict[int, int]) -> None:
        """Make the outer step of one round."""
        case = self.case
        mean = RoundMean(len(self.parameters), case.rule)  # type: ignore[arg-type]
        for worker, difference in differences.items():
            sent, age = self.sent(worker, difference), 0
            if case.late and worker:
                self._waiting[worker].append(sent)
                if len(self._waiting[worker]) <= case.late:
                    continue
                sent, age = self._waiting[worker].popleft(), case.late
            weight = late_weight(age) if case.has_age_weights else 1.0
            mean.add(sent, weight * (tokens[worker] if case.has_token_weights else 1))
        self._apply(mean.combine())

    def _apply(self, gradient: Vector) -> None:
        if self.case.is_adam:
            self._tensor.grad = torch.from_numpy(gradient)
            self._adam.step()
        else:
            self._step.apply(self.parameters, self._velocity, gradient)


def _codec(name: str) -> Codec | None:
    if not name:
        return None
    return SparseChunks() if name == "sparseloco" else make_codec(name)
