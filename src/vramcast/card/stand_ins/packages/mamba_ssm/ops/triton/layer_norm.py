"""As in mamba-ssm."""

from vramcast.card.stand_ins.kernels.fused_norm import RMSNorm, layer_norm_fn, rms_norm_fn

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm_fn"]
