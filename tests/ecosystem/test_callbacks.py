"""Callbacks that hand the numbers of a library's trainer to the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ringleader.dashboard import log
from ringleader.dashboard.callbacks import lightning_callback, transformers_callback
from ringleader.dashboard.number_files import NumberFolder, NumberPoint
from ringleader.settings.number_log import VARIABLE

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    log._logs.clear()
    return tmp_path


def last_point(folder: Path) -> NumberPoint:
    current = log._current()
    assert current is not None
    current.flush()
    return NumberFolder(folder).read()[0][-1]


def test_lightning_logs_what_the_module_logs(folder: Path) -> None:
    pl = pytest.importorskip("lightning")

    class Module(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch[0]).pow(2).mean()
            self.log("train/loss", loss)
            self.log("step", 3.0)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[lightning_callback()],
    )
    data = torch.utils.data.TensorDataset(torch.randn(32, 2))
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
    point = last_point(folder)
    assert point.step == 8
    assert point.values.keys() == {"train/loss", "step"}


def test_transformers_logs_what_the_trainer_logs(folder: Path) -> None:
    library = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401
            return {"loss": self.layer(x).pow(2).mean()}

    arguments = library.TrainingArguments(
        output_dir=str(folder / "out"),
        logging_steps=2,
        report_to=[],
        save_strategy="no",
        num_train_epochs=1,
        per_device_train_batch_size=4,
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    trainer = library.Trainer(
        model=Model(),
        args=arguments,
        train_dataset=[{"x": torch.randn(2)} for _ in range(32)],
        callbacks=[transformers_callback()],
    )
    trainer.train()
    point = last_point(folder)
    assert point.step == 8
    assert {"loss", "learning_rate"} <= point.values.keys()
