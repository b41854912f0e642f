"""``ringleader.elastic``: a training loop that survives the loss of machines."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import asdict
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from ringleader.errors import ConfigError
from ringleader.training.connect import connect
from ringleader.training.contribution import Contribution
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_environment import run_config
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.quantum_loader import QuantumLoader
from ringleader.training.data_order import DataOrder
from ringleader.training.members import Members
from ringleader.training.model_update import ModelUpdate
from ringleader.training.options import Options
from ringleader.training.run import ElasticRun
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.team import ALONE, Team


def elastic(  # noqa: PLR0913 - one keyword each
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Dataset[Any],
    *,
    global_batch: int,
    micro_batch: int,
    epochs: int | None = 1,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,  # noqa: ANN401
) -> ElasticRun:
    """Train ``model`` on all machines of the run, whoever comes and goes."""
    spec = DataSpec(
        num_samples=_length(dataset),
        global_batch=global_batch,
        micro_batch=micro_batch,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
    )
    return start_run(
        model,
        optimizer,
        dataset,
        spec,
        Options(seed=seed, **options),
        run_config(),
    )


def start_run(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Dataset[Any],
    spec: DataSpec,
    options: Options,
    config: RunConfig | None,
) -> ElasticRun:
    """Start a run; without ``config`` this process trains alone."""
    update = ModelUpdate(
        model,
        optimizer,
        scheduler=options.scheduler,
        scaler=options.scaler,
        clip=options.clip,
    )
    contribution = Contribution(update)
    contribution.attach()
    node = ALONE if config is None else config.credentials.node
    loader_options = dict(options.loader)
    if options.collate is not None:
        loader_options["collate_fn"] = options.collate
    loader = QuantumLoader(dataset, spec, node, **loader_options)
    loader.start()
    data = DataOrder(spec)
    team: Team
    if config is None:
        team = Team(data, contribution, loader)
    else:
        layout = _layout(update, spec)
        session = connect(config, layout, options.partition)
        team = Members(data, contribution, loader, session, options)
    try:
        team.start()
    except BaseException:
        team.close()
        raise
    return ElasticRun(team, contribution, options.seed)


def _length(dataset: Dataset[Any]) -> int:
    if not isinstance(dataset, Sized):
        text = "elastic: the dataset has no length; iterable datasets are not supported"
        raise ConfigError(text)
    return len(dataset)


def _layout(update: ModelUpdate, spec: DataSpec) -> dict[str, str]:
    layout = ReplicatedState(update.model, update.optimizer).layout()
    return {
        "model and optimizer": layout.digest().hex()[:32],
        **{name: str(value) for name, value in asdict(spec).items()},
    }
