"""Many nodes in one process on a virtual clock, and everything that can go wrong."""
