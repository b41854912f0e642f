"""TRL: supervised fine-tuning; its trainer is Hugging Face's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from datasets import Dataset
from report import digest, report
from tiny_models import causal_model, sentences, tokenizer
from trl import SFTConfig, SFTTrainer

folder = Path(os.environ["ECOSYSTEM_OUT"])
trainer = SFTTrainer(
    model=causal_model(),
    args=SFTConfig(
        output_dir=str(folder / "trainer"),
        use_cpu=True,
        bf16=False,
        ddp_backend=sys.argv[1] or None,
        per_device_train_batch_size=4,
        num_train_epochs=2,
        max_length=16,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=5,
        eos_token="[SEP]",
        pad_token="[PAD]",
    ),
    train_dataset=Dataset.from_dict({"text": sentences(32)}),
    processing_class=tokenizer(folder / f"words{os.environ['RANK']}"),
)
trainer.train()
history = [
    (entry["loss"], entry["mean_token_accuracy"])
    for entry in trainer.state.log_history
    if "loss" in entry
]
report(history=history, weights=digest(trainer.model))
