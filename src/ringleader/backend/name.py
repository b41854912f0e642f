"""The name by which torch.distributed knows the backend."""

NAME = "ringleader"
