"""What a module keeps, and why."""
