"""Files of a training run: journal, checkpoints and what is restored from them."""
