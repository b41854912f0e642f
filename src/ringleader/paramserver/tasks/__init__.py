"""Tasks: what is trained, built in or loaded from a file."""
