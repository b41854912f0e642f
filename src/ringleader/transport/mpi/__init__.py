"""Links over MPI messages, for jobs that mpirun starts."""
