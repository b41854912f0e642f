"""Modules and functions for data-parallel training: batch norm, initial state."""
