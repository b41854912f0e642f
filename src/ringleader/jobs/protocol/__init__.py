"""What a job is, what machines say about it, and the messages between them."""
