"""Measures the layers of a model and the machine that it runs on."""
