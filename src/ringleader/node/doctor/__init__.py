"""The doctor: gathers facts about this machine and its network, and names troubles."""
