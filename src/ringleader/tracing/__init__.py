"""Traces: where the time of a training step goes, on all ranks and on one clock."""
