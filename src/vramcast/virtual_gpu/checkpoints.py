"""Saving and loading: tensors without data never reach a file, and weights on disk are not read into memory.

torch.save of anything that holds a virtual tensor writes no file; what it would have held is kept in memory, so that
a program that loads its own checkpoint again gets it. torch.load and safetensors give tensors without data for
everything that is not small: only headers are read.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual_gpu import values
from vramcast.virtual_gpu.storages import GPU, HOST, UNKNOWN_CONTENT, Block, attach, block_of, known_values
from vramcast.virtual_gpu.unknown import caller

if TYPE_CHECKING:
    from vramcast.virtual_gpu.machine import Machine
    from vramcast.virtual_gpu.patches import Patches

_MMAP_ABOVE_BYTES = 1 << 20

_SAVERS = ("safetensors", "transformers", "accelerate", "diffusers", "peft", "huggingface_hub")
"""Packages that save on a program's behalf: the note names the program's own line."""


class Checkpoints:
    """The files that the program believes it has written; one instance per virtual GPU."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._written: dict[str, bytes] = {}
        self._map_location: Any = None
        self._quiet = False

    def install(self, put: Patches) -> None:
        put.set(sys.modules[__name__], "_active", self)  # pickle can name a function of a module, not a method
        put.set(torch, "save", self._saver(torch.save))
        put.set(torch, "load", self._loader(torch.load))
        put.set(torch.Tensor, "_reduce_ex_internal", self._reducer(torch.Tensor._reduce_ex_internal))
        registry = torch.serialization._package_registry
        put.set(torch.serialization, "_package_registry", [(-1, lambda storage: None, self._restore), *registry])
        put.set(torch.UntypedStorage, "cuda", lambda storage, *a, **k: self._restore(storage, "cuda"))
        self._install_safetensors(put)

    # -- torch.save -----------------------------------------------------------------------------------------

    def _saver(self, original: Callable[..., None]) -> Callable[..., None]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if not self._machine.ledger.open or not holds_virtual(obj):
                return original(obj, f, *args, **kwargs)
            path = _path(f)
            self._quiet = True
            try:
                if path is None:  # a buffer in memory: harmless, and the program may read it back
                    return original(obj, f, *args, **kwargs)
                buffer = io.BytesIO()
                original(obj, buffer)
            finally:
                self._quiet = False
            self._written[path] = buffer.getvalue()
            self._not_written(path)
            return None

        return save

    def _not_written(self, path: str) -> None:
        name = os.path.basename(path)
        self._machine.note("checkpoint", f"{name} is not written: its tensors have no data here", caller(*_SAVERS))

    def _reducer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _reduce_ex_internal(tensor: torch.Tensor, proto: int) -> Any:
            with torch._C.DisableTorchFunction():
                block = block_of(tensor) if tensor.is_meta else None
                if block is None or tensor.layout is not torch.strided:
                    return original(tensor, proto)
                shape, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
                requires_grad, is_gpu = tensor.requires_grad, block.device == GPU
                content = None
                if block.values is not None and tensor.numel() <= values.LIMIT_EXACT:
                    known = known_values(tensor)
                    content = None if known is None else known.clone()
            if not self._quiet:
                self._machine.note("checkpoint", "tensors without data are pickled: do not use that file", caller())
            return _rebuild, (shape, stride, dtype, is_gpu, requires_grad, content)

        return _reduce_ex_internal

    # -- torch.load -----------------------------------------------------------------------------------------

    def _loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._machine.ledger.open:
                return original(f, map_location, *args, **kwargs)
            path = _path(f)
            content = self._written.get(path) if path is not None else None
            before, self._map_location = self._map_location, map_location
            try:
                with torch.serialization.safe_globals([_rebuild]):
                    if content is not None:
                        kwargs = {name: value for name, value in kwargs.items() if name != "mmap"}
                        return original(io.BytesIO(content), map_location, *args, **kwargs)
                    if kwargs.get("mmap") is None and _can_be_mapped(f):
                        kwargs["mmap"] = True
                    return original(f, map_location, *args, **kwargs)
            finally:
                self._map_location = before

        return load

    def _restore(self, storage: Any, location: str) -> Any:
        """A storage of a file that belongs on the card: room for it, and its content where that is small."""
        if not location.startswith("cuda"):
            return None
        return self._on_card(storage.nbytes(), storage if storage.nbytes() <= values.LIMIT_EXACT else None)

    def _on_card(self, nbytes: int, content: Any) -> torch.UntypedStorage:
        storage = torch.UntypedStorage(nbytes, device="meta")
        block = self._machine.ledger.book(storage, GPU)
        if content is not None:
            block.values = content.clone()
        return storage

    def rebuild(
        self, shape: Any, stride: Any, dtype: torch.dtype, is_gpu: bool, requires_grad: bool, content: Any
    ) -> torch.Tensor:
        """A virtual tensor from a checkpoint, where `map_location` puts it."""
        where = self._map_location
        if isinstance(where, dict):
            where = where.get("cuda:0", where.get("cuda"))
        if callable(where):
            where = "cpu"
        on_gpu = is_gpu if where is None else not str(where).startswith("cpu")
        size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if math.prod(shape) else 0
        storage = torch.UntypedStorage(size * dtype.itemsize, device="meta")
        block = self._machine.ledger.book(storage, GPU if on_gpu else HOST)
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            tensor = torch.empty(0, dtype=dtype, device="meta").set_(storage, 0, shape, stride)
            if content is not None:
                matched = torch.empty_strided(shape, stride, dtype=dtype).copy_(content)
                if matched.untyped_storage().nbytes() == block.nbytes:
                    block.values = matched.untyped_storage()
        return tensor.requires_grad_(requires_grad)

    # -- safetensors ----------------------------------------------------------------------------------------

    def _install_safetensors(self, put: Patches) -> None:
        try:
            import safetensors
            import safetensors.torch as safetensors_torch
        except ImportError:
            return
        opener = self._safe_opener(safetensors.safe_open)
        # Modules that took the name before hold the original: all of them get the stand-in.
        put.everywhere("safe_open", safetensors.safe_open, opener)
        for name in ("_flatten_as_ptr", "_flatten"):
            if hasattr(safetensors_torch, name):
                put.set(safetensors_torch, name, self._flattener(getattr(safetensors_torch, name)))
        for name in ("serialize", "serialize_file"):
            put.set(safetensors_torch, name, self._serializer(getattr(safetensors_torch, name)))

    def _safe_opener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
            if not self._machine.ledger.open or framework not in ("pt", "torch", "pytorch"):
                return original(filename, framework, device, **options)
            return _Reader(original(filename, framework, "cpu", **options), device, self._machine)

        return safe_open

    def _flattener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def flatten(tensors: Any, *args: Any) -> Any:
            if isinstance(tensors, dict) and any(_is_without_data(t) for t in tensors.values()):
                return _NOTHING
            return original(tensors, *args)

        return flatten

    def _serializer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def serialize(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if tensors is not _NOTHING:
                return original(tensors, *args, **kwargs)
            if args:
                self._not_written(os.fspath(args[0]))
            return b""

        return serialize


_NOTHING: dict[str, Any] = {"without data": None}
_active: Checkpoints | None = None


def _rebuild(*parts: Any) -> torch.Tensor:
    if _active is None:
        raise RuntimeError("this pickle was written by a run on a virtual GPU and holds no data")
    return _active.rebuild(*parts)


def holds_virtual(obj: Any) -> bool:
    """Whether pickling `obj` would meet a tensor without (real) data."""
    scan = _Scan()
    try:
        scan.dump(obj)
    except _Found:
        return True
    except Exception:  # whatever cannot be pickled is torch.save's to complain about
        return False
    return False


class _Found(Exception):
    pass


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


class _Scan(pickle.Pickler):
    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=pickle.HIGHEST_PROTOCOL)

    def persistent_id(self, obj: Any) -> Any:
        return "storage" if torch.is_storage(obj) or isinstance(obj, torch.UntypedStorage) else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            if _is_without_data(obj):
                raise _Found
            return (int, ())
        return NotImplemented


def _is_without_data(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor):
        return False
    with torch._C.DisableTorchFunction():
        if tensor.is_meta:
            return block_of(tensor) is not None
        if tensor.layout is not torch.strided:
            return False
        return hasattr(tensor.untyped_storage(), UNKNOWN_CONTENT)


def _path(f: Any) -> str | None:
    """The file behind a path or an open file; None for a buffer in memory."""
    if isinstance(f, (str, os.PathLike)):
        return os.path.abspath(os.fspath(f))
    name = getattr(f, "name", None)
    return os.path.abspath(name) if isinstance(name, str) and not isinstance(f, io.BytesIO) else None


def _can_be_mapped(f: Any) -> bool:
    if not isinstance(f, (str, os.PathLike)) or not os.path.isfile(f) or os.path.getsize(f) < _MMAP_ABOVE_BYTES:
        return False
    with open(f, "rb") as file:
        return bool(torch.serialization._is_zipfile(file))


class _Reader:
    """An open safetensors file that reads small tensors and only the shapes of the others."""

    def __init__(self, inner: Any, device: Any, machine: Machine) -> None:
        self._inner = inner
        device = "cpu" if device is None else device
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(str(device))
        self._machine = machine

    def __enter__(self) -> _Reader:
        self._inner.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._inner.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        part = self._inner.get_slice(name)
        shape, dtype = part.get_shape(), DTYPES.get(part.get_dtype())
        if dtype is None or _keeps_values(math.prod(shape), dtype):
            tensor = self._inner.get_tensor(name)
        else:
            tensor = without_data(self._machine, shape, dtype)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)  # type: ignore[no-any-return]

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._inner.keys()}  # noqa: SIM118  (not a dict)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._inner.get_slice(name), lambda: self.get_tensor(name))


class _Slice:
    def __init__(self, inner: Any, whole: Callable[[], torch.Tensor]) -> None:
        self._inner = inner
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        whole = self._whole()
        part = whole[index]
        return whole if part.shape == whole.shape else part.clone(memory_format=torch.contiguous_format)


# The names in a safetensors header (the dtypes of its format description).
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}


def _keeps_values(numel: int, dtype: torch.dtype) -> bool:
    floating = dtype.is_floating_point or dtype.is_complex
    return numel <= (values.LIMIT_FLOAT if floating else values.LIMIT_EXACT)


def without_data(machine: Machine, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in host memory that was never filled."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        storage = tensor.untyped_storage()
        attach(storage, Block(None, HOST, storage.nbytes(), -1, id(storage)))
    return tensor
