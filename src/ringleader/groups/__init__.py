"""A group of ranks and what it can do."""
