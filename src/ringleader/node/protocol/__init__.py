"""Messages between agents, and between an agent and local processes."""
