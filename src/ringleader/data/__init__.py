"""Samples for each rank: disjoint, complete, resumable, in proportion to weights."""
