"""The group as a torch.distributed backend named ``ringleader``."""
