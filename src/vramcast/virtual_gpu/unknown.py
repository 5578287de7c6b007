"""What cannot be known: kernels without a rule, and values that only a real run would have."""

from __future__ import annotations

import sys
import sysconfig
from typing import Any

import torch

from vramcast.errors import CannotPredict

_LIBRARY_PREFIXES = (torch.__path__[0], sysconfig.get_paths()["stdlib"], __file__.rpartition("virtual_gpu")[0])


class UnknownKernel(CannotPredict):
    """The program runs a kernel whose memory use is not known."""


def no_rule(op: Any, args: tuple[Any, ...], cause: BaseException | None = None) -> UnknownKernel:
    name = op if isinstance(op, str) else op._schema.name
    shapes = ", ".join(
        f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in args if isinstance(a, torch.Tensor)
    )
    reason = f" ({str(cause).splitlines()[0]})" if cause is not None and not isinstance(op, str) else ""
    return UnknownKernel(
        f"no rule for {name}({shapes}), called at {caller()}: what it allocates is not known.\n"
        f"Teach it with a function that returns empty outputs, before training starts:\n"
        f'    @vramcast.rule("{name}")\n'
        f"    def rule(*args, **kwargs): return torch.empty_like(args[0])   # shapes and dtypes of its outputs\n"
        f"or, for a custom op of your own, with torch.library.register_fake(\"{name}\").{reason}"
    )


def caller() -> str:
    """file:line of the innermost frame that is neither torch's, ours nor the standard library's."""
    frame = sys._getframe(1)
    fallback = "?"
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(_LIBRARY_PREFIXES) or "site-packages" in filename.replace(
            torch.__path__[0], ""
        ):
            if not filename.startswith((torch.__path__[0], _LIBRARY_PREFIXES[2])):
                return f"{filename}:{frame.f_lineno}"
        fallback = f"{filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return fallback
