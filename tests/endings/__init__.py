"""However it ends: the exit code is the verdict, and nothing is left behind."""
