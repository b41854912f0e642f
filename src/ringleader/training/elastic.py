"""``ringleader.elastic``: a training loop that survives the loss of machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ringleader.ids import NodeId
from ringleader.settings.checkpoint import checkpoint_folder
from ringleader.training.connect import connect
from ringleader.training.contribution import Contribution
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_environment import run_config
from ringleader.training.data.data_source import Data, data_spec, make_loader
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data_order import DataOrder
from ringleader.training.following import Following
from ringleader.training.member_data import MemberData
from ringleader.training.members import Members
from ringleader.training.model_update import ModelUpdate
from ringleader.training.options import Options
from ringleader.training.round_contribution import RoundContribution
from ringleader.training.round_update import RoundUpdate
from ringleader.training.run import ElasticRun
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.state.run_checkpoints import History, RunCheckpoints
from ringleader.training.team import ALONE, Team


def elastic(  # noqa: PLR0913 - one keyword each
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Data,
    *,
    global_batch: int,
    micro_batch: int,
    epochs: int | None = 1,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,  # noqa: ANN401
) -> ElasticRun:
    """Return a training loop that goes on when machines are lost or join.

    Iterate over it; call ``backward(loss)`` and ``step()`` of the run for each batch. A
    step takes ``global_batch`` samples, of all machines together, in micro-batches of
    ``micro_batch``. ``options`` are the fields of ``Options``. A process that was not
    started by ``ringleader run --survive`` trains alone.

    Raises ConfigError if the model, the data or an option cannot be used.
    """
    chosen = Options(seed=seed, **options)
    rounds = chosen.rounds
    spec = data_spec(
        dataset,
        global_batch=global_batch * (rounds.steps if rounds else 1),
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
        chosen,
        run_config(),
    )


def start_run(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Data,
    spec: DataSpec,
    options: Options,
    config: RunConfig | None,
) -> ElasticRun:
    """Start a run; without ``config`` this process trains alone."""
    contribution = _contribution(model, optimizer, options)
    contribution.attach()
    node = ALONE if config is None else config.credentials.node
    loader = make_loader(dataset, spec, node, options.collate, options.loader)
    loader.start()
    data = DataOrder(spec)
    state = _replicated_state(contribution.update, data, options)
    checkpoints = _checkpoints(state, node, options)
    history = None if config is not None and config.is_joiner else _restore(checkpoints)
    contribution.drop()
    team: Team
    if config is None:
        team = Team(data, contribution, loader)
    else:
        about = MemberData(
            layout=_layout(state, spec, options), fingerprint=state.fingerprint()
        )
        session, membership = connect(
            config, about, options.partition, history, is_held=config.is_joiner
        )
        following = Following(
            state,
            lambda: team.version,
            membership,
            has_gradients=options.rounds is None,
        )
        team = Members(data, contribution, loader, following, session, options)
    team.checkpoints = checkpoints
    team.version = 0 if history is None else history.version
    try:
        team.start()
    except BaseException:
        team.close()
        raise
    return ElasticRun(team, contribution, options.seed)


def _replicated_state(
    update: ModelUpdate, data: DataOrder, options: Options
) -> ReplicatedState:
    others = {"scheduler": update.scheduler, "scaler": update.scaler, "data": data}
    return update.replicated_state(
        {name: each for name, each in others.items() if each is not None},
        options.extra_state,
    )


def _checkpoints(
    state: ReplicatedState, node: NodeId, options: Options
) -> RunCheckpoints | None:
    folder = options.checkpoint or checkpoint_folder()
    if not folder:
        return None
    return RunCheckpoints(folder, state, node, keep=options.keep)


def _restore(checkpoints: RunCheckpoints | None) -> History | None:
    return None if checkpoints is None else checkpoints.restore()


def _contribution(
    model: nn.Module, optimizer: Optimizer, options: Options
) -> Contribution:
    settings = {
        "scheduler": options.scheduler,
        "scaler": options.scaler,
        "clip": options.clip,
    }
    if options.rounds is None:
        return Contribution(ModelUpdate(model, optimizer, **settings))
    outer = options.rounds.outer
    return RoundContribution(RoundUpdate(model, optimizer, outer, **settings))


def _layout(state: ReplicatedState, spec: DataSpec, options: Options) -> dict[str, str]:
    return {
        "model and optimizer": state.layout().digest().hex()[:32],
        **options.shared(),
        **{name: str(value) for name, value in asdict(spec).items()},
    }
