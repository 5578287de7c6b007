"""A CUDA card for PyTorch programs on a machine that has none."""

from vramcast.card.device import installed_torch  # noqa: F401  (first: it refuses a torch that is too old)
