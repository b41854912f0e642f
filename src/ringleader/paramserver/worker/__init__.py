"""The worker: computes updates for a parameter server."""
