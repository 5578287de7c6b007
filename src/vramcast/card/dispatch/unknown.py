"""What cannot be known: kernels without a rule, and values that only a real run would have."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from types import FrameType
from typing import Any

import torch

from vramcast.base.errors import CannotPredict

_SEPARATORS = (os.sep, "/")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_TORCH = os.path.join(torch.__path__[0], "")
_VRAMCAST = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")
_STANDARD_LIBRARY = tuple(
    os.path.join(folder, "") for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
_SCRIPTS = os.path.join(sysconfig.get_path("scripts"), "")
"""Of the environment: vramcast, torchrun, accelerate as they are started."""
GENERATED = "vramcast-inductor-"
"""Beginning of the name of a folder for code that compilers write."""


class UnknownKernel(CannotPredict):
    """The program runs a kernel whose memory use is not known."""


def no_rule(op: Any, args: tuple[Any, ...], *beyond: str) -> UnknownKernel:
    """The error for a kernel that vramcast cannot follow: what it is, who called it, what to do."""
    name = op if isinstance(op, str) else op._schema.name
    shapes = ", ".join(
        f"{str(a.dtype).removeprefix('torch.')}{'[nested]' if a.is_nested else list(a.shape)}"
        for a in args
        if isinstance(a, torch.Tensor)
    )
    lines = [
        f"no rule for {name}({shapes}), called at {caller(*beyond)}: what it allocates is not known.",
        "Teach vramcast with a function that returns empty outputs, in the script or a module it imports:",
        f'    @vramcast.rule("{name}")',
    ]
    lines.append("    def rule(*args, **kwargs): return torch.empty_like(args[0])   # outputs: shapes and dtypes")
    if not name.startswith("aten::"):
        lines.append(f'or, for an op of your own, with torch.library.register_fake("{name}").')
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


def in_words_of_cuda(error: RuntimeError) -> RuntimeError:
    """A meta kernel's complaint about mixed devices, as CUDA would have put it; any other error as it is."""
    if type(error) is RuntimeError and "device" in str(error) and "meta" in str(error):
        return RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )
    return error


def caller(*beyond: str) -> str:
    """file:line of the innermost frame that is neither torch's, ours, the standard library's nor a package `beyond`."""
    frame: FrameType | None = sys._getframe(1)
    outermost = "?"
    while frame is not None:
        filename = frame.f_code.co_filename
        if not is_machinery(filename) and not short_path(filename).startswith(beyond):
            return f"{short_path(filename)}:{frame.f_lineno}"
        outermost = f"{short_path(filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return outermost


def line_of_code() -> str:
    """file:line of the innermost frame of the user's code or of a model library; empty where there is none. Code that
    was made while the program ran (<string>) has no line that anybody could look at."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_machinery(frame.f_code.co_filename) and not frame.f_code.co_filename.startswith("<"):
            return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def own_line() -> str:
    """file:line of the innermost frame of the user's own code or, failing that, as `caller` has it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return caller()


@cache
def is_own(filename: str) -> bool:
    """Whether a file is the user's: neither machinery nor a package that was installed."""
    return not is_machinery(filename) and not any(folder in filename for folder in _PACKAGE_FOLDERS)


def where_raised(error: BaseException, otherwise: str = "?") -> str:
    """file:line of the innermost frame of its traceback that is the user's."""
    place, trace = otherwise, error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not is_machinery(filename):
            place = f"{short_path(filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


@cache
def is_machinery(filename: str) -> bool:
    """Whether a file is torch's, vramcast's or Python's own, starts one of them, or was written by a compiler: what the
    user wrote, or a model library, is not."""
    if filename.startswith((_TORCH, _VRAMCAST, _SCRIPTS, "<frozen ")) or f"{os.sep}{GENERATED}" in filename:
        return True
    if filename.startswith(_STANDARD_LIBRARY):
        return not any(folder in filename for folder in _PACKAGE_FOLDERS)
    return False


def is_of_vramcast(filename: str) -> bool:
    return filename.startswith(_VRAMCAST)


def is_of_torch(filename: str) -> bool:
    return filename.startswith(_TORCH)


def short_path(filename: str) -> str:
    """Relative to the package folder or the working directory where it lies below one of them."""
    in_package = _in_package(filename)
    if in_package:
        return in_package
    try:
        here = os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # the program has removed the folder it was in
        return filename
    return filename.removeprefix(here)


@cache
def _in_package(filename: str) -> str:
    """Relative to the package folder; empty for a file that lies in none."""
    for folder in _PACKAGE_FOLDERS:
        for separator in _SEPARATORS:
            _, prefix, rest = filename.rpartition(f"{folder}{separator}")
            if prefix:
                return rest
    return ""
