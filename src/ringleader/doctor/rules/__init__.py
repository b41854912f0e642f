"""Diagnosis rules: pure functions from facts to findings."""
