"""The agent process: membership, jobs and local requests of one node."""
