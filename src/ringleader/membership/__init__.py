"""Failure detection, leader election and agreement on views, as a pure state
machine.
"""
