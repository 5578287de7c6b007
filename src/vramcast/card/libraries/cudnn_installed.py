"""Find a cuDNN that can be asked without a GPU.

The library comes with the CUDA builds of PyTorch, from 2.8 on in a version that can be asked; for older ones a folder
with a newer cuDNN can be named (`FOLDER_VARIABLE`).
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from collections.abc import Iterator
from functools import cache

from vramcast.base.errors import UsageError
from vramcast.card.libraries.cudnn_query import CudnnLibrary

MINIMUM_VERSION = 90800  # the first with CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR
LIBRARY = "libcudnn.so.9"
DISABLE_VARIABLE = "VRAMCAST_NO_CUDNN"  # set: use the fitted model even where the library is installed
FOLDER_VARIABLE = "VRAMCAST_CUDNN"  # what `pip install --target FOLDER nvidia-cudnn-cu12 nvidia-cublas-cu12` filled


def _candidates() -> Iterator[str]:
    """The library that is loaded already, the one beside PyTorch, the system's."""
    yield LIBRARY
    for folder in sys.path:
        yield from glob.glob(os.path.join(folder, "nvidia", "cudnn", "lib", LIBRARY))


def _has_cublas_lt() -> bool:
    """cuDNN ends the process when it does not find this library, so make sure that it will."""
    names = [f"libcublasLt.so.{major}" for major in (13, 12)]
    folders = [os.path.join(folder, "nvidia", part, "lib") for folder in sys.path for part in ("cu13", "cublas")]
    for path in (*names, *(os.path.join(folder, name) for folder in folders for name in names)):
        if os.sep in path and not os.path.exists(path):
            continue
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return True
    return False


@cache
def open_cudnn() -> CudnnLibrary | None:
    """The cuDNN of the folder that was named, else the installed one; None where none can be asked without a GPU."""
    if os.environ.get(DISABLE_VARIABLE) or not sys.platform.startswith("linux"):
        return None
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        library = _usable(_kept_apart(folder))
        if library is None:
            raise UsageError(
                f"{FOLDER_VARIABLE}={folder}: no cuDNN 9.8 or newer with its cuBLAS there; fill the folder with: "
                f"pip install --target {folder} nvidia-cudnn-cu12 nvidia-cublas-cu12"
            )
        return library
    if not _has_cublas_lt():
        return None
    for path in _candidates():
        try:
            library = _usable(ctypes.CDLL(path))
        except OSError:
            continue
        if library is not None:
            return library
    return None


def _usable(library: ctypes.CDLL | None) -> CudnnLibrary | None:
    if library is None:
        return None
    try:
        library.cudnnGetVersion.restype = ctypes.c_size_t
        version = int(library.cudnnGetVersion())
    except AttributeError:
        return None
    return CudnnLibrary(library, version) if version >= MINIMUM_VERSION else None


_NEW_NAMESPACE, _NAMESPACE_OF = -1, 1  # LM_ID_NEWLM, RTLD_DI_LMID of glibc's dlfcn.h


def _kept_apart(folder: str) -> ctypes.CDLL | None:
    """The cuDNN in a folder, in a link namespace of its own: torch may have loaded another of the same name."""
    cudnn = glob.glob(os.path.join(glob.escape(folder), "nvidia", "cudnn", "lib", LIBRARY))
    cublas = [
        path
        for part in ("cublas", "cu13")
        for path in glob.glob(os.path.join(glob.escape(folder), "nvidia", part, "lib", "libcublasLt.so.*[0-9]"))
    ]
    if not cudnn or not cublas:
        return None
    loader = ctypes.CDLL(None)
    try:
        loader.dlmopen.restype = ctypes.c_void_p
        loader.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
        loader.dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    except AttributeError:  # not glibc
        return None
    first = loader.dlmopen(_NEW_NAMESPACE, os.fsencode(cublas[0]), os.RTLD_NOW)
    if not first:
        return None
    namespace = ctypes.c_long()
    loader.dlinfo(first, _NAMESPACE_OF, ctypes.byref(namespace))
    handle = loader.dlmopen(namespace.value, os.fsencode(cudnn[0]), os.RTLD_NOW)
    return ctypes.CDLL(LIBRARY, handle=handle) if handle else None
