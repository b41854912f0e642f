"""The composition root: an agent that finds, joins and keeps a cluster for its job."""
