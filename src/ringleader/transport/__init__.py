"""Links: ordered byte streams between two ranks, and how they are made."""
