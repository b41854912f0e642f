"""The parameter server: it keeps the weights and applies the updates of workers."""
