"""As in mamba-ssm."""

from vramcast.card.stand_ins.kernels.selective_scan import mamba_inner_fn, selective_scan_fn

__all__ = ["mamba_inner_fn", "selective_scan_fn"]
