"""As in causal-conv1d."""

from vramcast.card.stand_ins.kernels.causal_convolution import causal_conv1d_fn, causal_conv1d_update

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]
