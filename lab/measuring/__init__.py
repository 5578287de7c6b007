"""What runs on a machine with a GPU, and how its records are kept."""
