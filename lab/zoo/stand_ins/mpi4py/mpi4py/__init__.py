"""MPI in a world of one process, for machines without an MPI library."""
