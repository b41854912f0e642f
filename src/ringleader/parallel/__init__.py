"""What a model needs to be trained by several ranks as if by one."""
