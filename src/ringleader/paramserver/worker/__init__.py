"""The worker: it computes updates for a parameter server."""
