"""Predicts how long a collective takes on a given network."""
