"""The label of the mark that a run leaves after its first kernel: where later segments lie depends on it."""

FIRST_KERNEL = "first kernel"
