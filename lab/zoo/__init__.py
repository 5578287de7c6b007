"""Public training scripts that nobody here wrote, run as they are: see docs/lab/zoo.md."""
