"""Training over the internet: a parameter server and its workers."""
