"""One module per strategy of ``parallelize``: what it makes of a model."""
