"""Pipelines: a model's layers on several machines, by torch.distributed.pipelining."""
