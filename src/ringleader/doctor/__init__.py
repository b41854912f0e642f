"""Network diagnosis: gathers facts about this machine and its peers."""
