"""The engine: runs schedules over links, and collectives in shared memory."""
