"""Chooses which machine gets which layers, and how many samples; pure functions."""
