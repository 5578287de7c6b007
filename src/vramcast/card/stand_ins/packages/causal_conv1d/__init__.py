"""Answers `import causal_conv1d` where it is not installed."""

from vramcast.card.stand_ins.kernels.causal_convolution import causal_conv1d_fn, causal_conv1d_update

__version__ = "1.6.1"
__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]
