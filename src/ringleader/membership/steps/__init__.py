"""The step protocol: which update a training run applies next, as pure functions."""
