"""A CUDA card for PyTorch programs on a machine that has none.

The package can be called: `vramcast.virtual_gpu("rtx-4090")` makes a card. Python binds the name of a package to the
package itself as soon as one of its modules is imported, so a function of that name beside it would come and go.
"""

from __future__ import annotations

import sys
from types import ModuleType

from vramcast.gpus import GpuSpec
from vramcast.virtual_gpu import installed_torch  # noqa: F401  (first: it refuses a torch that is too old)
from vramcast.virtual_gpu.context import VirtualGpu, virtual_gpu
from vramcast.virtual_gpu.rules import rule

__all__ = ["VirtualGpu", "rule", "virtual_gpu"]


class _CallablePackage(ModuleType):
    def __call__(
        self, gpu: str | GpuSpec, *, allocator_conf: str | None = None, limit_bytes: int | None = None, source: str = ""
    ) -> VirtualGpu:
        return virtual_gpu(gpu, allocator_conf=allocator_conf, limit_bytes=limit_bytes, source=source)

    __call__.__doc__ = virtual_gpu.__doc__


sys.modules[__name__].__class__ = _CallablePackage
