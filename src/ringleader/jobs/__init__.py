"""Jobs: programs that one command starts on several machines of the cluster."""
