"""Training in rounds: many local steps, then one exchange of differences."""
