"""The torch.distributed backend ``ringleader``: a group as a torch ProcessGroup."""
