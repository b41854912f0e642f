"""Jobs of all machines, from the one where a command is typed."""
