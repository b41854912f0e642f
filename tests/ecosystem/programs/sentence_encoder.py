"""sentence-transformers: its trainer is Hugging Face's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from datasets import Dataset
from report import digest, report
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from tiny_models import save_encoder, sentences

folder = Path(os.environ["ECOSYSTEM_OUT"])
encoder = save_encoder(folder / f"encoder{os.environ['RANK']}")
model = SentenceTransformer(encoder, device="cpu")
texts = sentences(64)
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir=str(folder / "trainer"),
        use_cpu=True,
        ddp_backend=sys.argv[1] or None,
        per_device_train_batch_size=8,
        num_train_epochs=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=5,
    ),
    train_dataset=Dataset.from_dict({"anchor": texts[:32], "positive": texts[32:]}),
    loss=MultipleNegativesRankingLoss(model, gather_across_devices=True),
)
trainer.train()
history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
report(losses=history, weights=digest(model))
