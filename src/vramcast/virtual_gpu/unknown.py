"""What cannot be known: kernels without a rule, and values that only a real run would have."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Any

import torch

from vramcast.errors import CannotPredict

_SEPARATORS = (os.sep, "/")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_TORCH = os.path.join(torch.__path__[0], "")
_VRAMCAST = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_STANDARD_LIBRARY = tuple(
    os.path.join(folder, "") for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)


class UnknownKernel(CannotPredict):
    """The program runs a kernel whose memory use is not known."""


def no_rule(op: Any, args: tuple[Any, ...], cause: BaseException | None = None) -> UnknownKernel:
    """The error for a kernel that vramcast cannot follow: what it is, who called it, what to do."""
    name = op if isinstance(op, str) else op._schema.name
    shapes = ", ".join(
        f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in args if isinstance(a, torch.Tensor)
    )
    lines = [
        f"no rule for {name}({shapes}), called at {caller()}: what it allocates is not known.",
        "Teach vramcast with a function that returns empty outputs, before training starts:",
        f'    @vramcast.rule("{name}")',
    ]
    if name.startswith("triton::"):
        lines.append("    def rule(*args, **kwargs): ...   # a Triton kernel writes into tensors that it is given")
    else:
        lines.append("    def rule(*args, **kwargs): return torch.empty_like(args[0])   # outputs: shapes and dtypes")
        lines.append(f'or, for an op of your own, with torch.library.register_fake("{name}").')
    if cause is not None and str(cause):
        lines.append(f"(PyTorch said: {str(cause).splitlines()[0]})")
    return UnknownKernel("\n".join(lines))


def leaves_torch(what: str, tensor: torch.Tensor) -> UnknownKernel:
    """The error for memory of the card that is handed to something outside PyTorch."""
    shape = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    return UnknownKernel(
        f"{what} of a cuda tensor ({shape}) is asked for at {caller()}: another library would run kernels on its data, "
        "and vramcast cannot see what they allocate.\n"
        "Wrap that code in an op of its own (torch.library.custom_op) and teach vramcast what it returns:\n"
        '    @vramcast.rule("my_namespace::my_op")\n'
        "    def rule(*args, **kwargs): return torch.empty_like(args[0])   # outputs: shapes and dtypes"
    )


def caller() -> str:
    """file:line of the innermost frame that is neither torch's, ours nor the standard library's."""
    frame: FrameType | None = sys._getframe(1)
    outermost = "?"
    while frame is not None:
        filename = frame.f_code.co_filename
        if not is_machinery(filename):
            return f"{short_path(filename)}:{frame.f_lineno}"
        outermost = f"{short_path(filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return outermost


def is_machinery(filename: str) -> bool:
    """Whether a file is torch's, vramcast's or Python's own: what the user wrote, or a model library, is not."""
    if filename.startswith((_TORCH, _VRAMCAST, "<frozen ")):
        return True
    if filename.startswith(_STANDARD_LIBRARY):
        return not any(folder in filename for folder in _PACKAGE_FOLDERS)
    return False


def short_path(filename: str) -> str:
    """Relative to the package folder or the working directory where it lies below one of them."""
    for folder in _PACKAGE_FOLDERS:
        for separator in _SEPARATORS:
            _, found, rest = filename.rpartition(f"{folder}{separator}")
            if found:
                return rest
    here = os.path.join(os.getcwd(), "")
    return filename.removeprefix(here)
