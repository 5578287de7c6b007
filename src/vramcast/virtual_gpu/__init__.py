"""A CUDA card for PyTorch programs on a machine that has none."""

from vramcast.virtual_gpu.context import VirtualGpu, virtual_gpu

__all__ = ["VirtualGpu", "virtual_gpu"]
