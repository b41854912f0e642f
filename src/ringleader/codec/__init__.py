"""Codecs: pure functions that encode float32 arrays in fewer bytes."""
