"""Joining a cluster with a six-digit PIN.

``protocol`` is the exchange itself, ``join_client`` and ``invitation`` run its two
sides over TCP, ``attempt_window`` limits how often a PIN may be tried, and
``pin_proof`` is the shorter exchange by which a worker verifies a server's key.
"""
