"""Hugging Face Trainer: data parallel, fully sharded, or LoRA by peft."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import shard_on_cpu  # noqa: F401 - on import
from peft import LoraConfig, get_peft_model
from report import digest, make_group_first, report
from tiny_models import causal_model, token_rows
from transformers import Trainer, TrainingArguments

make_group_first()
kind, backend = sys.argv[1], sys.argv[2]
model = causal_model()
if kind == "lora":
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
sharding = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    },
}
arguments = TrainingArguments(
    output_dir=str(Path(os.environ["ECOSYSTEM_OUT"], "trainer")),
    use_cpu=True,
    ddp_backend=backend or None,
    per_device_train_batch_size=4,
    num_train_epochs=2,
    learning_rate=1e-2,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    seed=5,
    **(sharding if kind == "fsdp" else {}),
)
trainer = Trainer(
    model, arguments, train_dataset=token_rows(), eval_dataset=token_rows(8)
)
trainer.train()
history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
report(
    losses=history,
    evaluated=trainer.evaluate()["eval_loss"],
    weights=digest(trainer.model),
    kinds=sorted({type(p).__name__ for p in trainer.model_wrapped.parameters()}),
)
