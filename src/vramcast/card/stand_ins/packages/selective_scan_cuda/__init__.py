"""The compiled part of mamba-ssm, for its Python part, which installs without a GPU."""

from vramcast.card.stand_ins.kernels.selective_scan import bwd, fwd

__all__ = ["bwd", "fwd"]
