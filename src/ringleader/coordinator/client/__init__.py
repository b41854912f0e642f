"""The worker's side: registers, sends heartbeats, watches peers."""
