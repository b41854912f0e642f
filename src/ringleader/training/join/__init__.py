"""Live join: a machine follows a run while the others train, then becomes a member."""
