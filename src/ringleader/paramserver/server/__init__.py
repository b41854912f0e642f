"""The parameter server: keeps the weights, and applies the updates of workers."""
