"""Engines: each runs one collective call on arrays."""
