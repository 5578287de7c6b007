"""Specifications of GPUs, as data with a source for each figure."""

from vramcast.gpus.catalogue import all_gpus, find_gpu
from vramcast.gpus.spec import GpuSpec

__all__ = ["GpuSpec", "all_gpus", "find_gpu"]
