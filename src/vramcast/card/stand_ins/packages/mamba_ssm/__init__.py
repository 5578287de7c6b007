"""Answers `import mamba_ssm` where it is not installed: Mamba, whose kernels are compiled CUDA. Those of Mamba2 are
Triton, which the package itself brings without a GPU."""

from __future__ import annotations

from typing import Any

from mamba_ssm.modules.mamba_simple import Mamba  # type: ignore[import-not-found]
from mamba_ssm.ops.selective_scan_interface import (  # type: ignore[import-not-found]
    mamba_inner_fn,
    selective_scan_fn,
)

__version__ = "2.3.2.post1"
__all__ = ["Mamba", "mamba_inner_fn", "selective_scan_fn"]


def __getattr__(name: str) -> Any:
    raise ImportError(
        f"mamba_ssm has no {name} in the stand-in that vramcast has for it. mamba-ssm installs without a GPU and "
        "without its compiled part, and its Triton kernels then run as they are: "
        "pip install --no-build-isolation --no-deps mamba-ssm einops"
    )
