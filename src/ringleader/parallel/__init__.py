"""Distributes a model over ranks: ``parallelize``, its strategies, batch norm."""
