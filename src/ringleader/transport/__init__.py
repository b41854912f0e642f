"""Links to other ranks: TCP, TLS and shared memory; listening, dialing and the mesh."""
