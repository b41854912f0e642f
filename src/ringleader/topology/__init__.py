"""What each node is, what each link is, and the ring order that follows from it."""
