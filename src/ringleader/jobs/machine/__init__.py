"""Jobs on one machine: its folder, its logs, its processes, the agent's service."""
