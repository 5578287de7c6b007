"""safetensors: of large tensors only the shapes are read, and files are written without the data that is missing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast import overlay
from vramcast.card.files.holes import LARGEST_IN_MEMORY_BYTES, leave_hole
from vramcast.card.files.missing_data import is_without_data, keeps_values, known_content, without_data
from vramcast.card.files.real_files import RealFiles
from vramcast.card.files.safetensors_stubs import NAMES, Stub, is_stub, read_stub, stub_of

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches

DTYPES = {name: dtype for dtype, name in NAMES.items()}


class SafetensorsFiles:
    """One instance per virtual GPU."""

    def __init__(self, machine: Machine, real_files: RealFiles) -> None:
        self._machine = machine
        self._real_files = real_files

    def install(self, put: Patches) -> None:
        try:
            import safetensors
            import safetensors.torch as safetensors_torch
        except ImportError:
            return
        opener = self._safe_opener(safetensors.safe_open)
        # Modules that took the name before hold the original: all of them get the stand-in.
        put.everywhere("safe_open", safetensors.safe_open, opener)
        put.everywhere("load", safetensors_torch.load, self._bytes_loader(safetensors_torch.load))
        for name in ("_flatten_as_ptr", "_flatten"):
            if hasattr(safetensors_torch, name):
                put.set(safetensors_torch, name, self._flattener(getattr(safetensors_torch, name)))
        for name in ("serialize", "serialize_file"):
            put.set(safetensors_torch, name, self._serializer(getattr(safetensors_torch, name)))

    def _safe_opener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
            if not self._machine.ledger.open or framework not in ("pt", "torch", "pytorch"):
                return original(filename, framework, device, **options)
            kept = self._real_files.kept.get(os.path.abspath(filename))
            stub = read_stub(filename) if kept is None else Stub(kept)
            return _OpenFile(stub or original(filename, framework, "cpu", **options), device, self._machine)

        return safe_open

    def _bytes_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(data: bytes) -> Any:
            if not self._machine.ledger.open or not is_stub(data):
                return original(data)
            return _OpenFile(Stub(data), "cpu", self._machine).get_tensors()

        return load

    def _flattener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def flatten(tensors: Any, *args: Any) -> Any:
            if isinstance(tensors, dict) and any(is_without_data(t) for t in tensors.values()):
                return _PartlyMissing(tensors)
            return original(tensors, *args)

        return flatten

    def _serializer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def serialize(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(tensors, _PartlyMissing):
                return original(tensors, *args, **kwargs)
            named = original.__name__ == "serialize_file"
            metadata = kwargs.get("metadata", args[-1] if len(args) > named else None)
            known = {name: known_content(tensor) for name, tensor in tensors.items()}
            usable = named and overlay.active() is not None
            header, missing = stub_of(tensors, metadata, known, usable=usable)
            if not named:
                return header + bytes(missing if missing <= LARGEST_IN_MEMORY_BYTES else 0)
            path = os.fspath(args[0] if args else kwargs["filename"])
            if self._real_files.must_stay(path):
                self._real_files.kept[os.path.abspath(path)] = header
                return None
            self._real_files.note_use(path)
            with open(path, "wb") as file:
                file.write(header)
                leave_hole(file, missing)
            return None

        return serialize


class _PartlyMissing(dict[str, torch.Tensor]):
    """What safetensors is to write, some of it without data."""


class _OpenFile:
    """An open safetensors file that reads small tensors and only the shapes of the others."""

    def __init__(self, inner: Any, device: Any, machine: Machine) -> None:
        self._inner = inner
        device = "cpu" if device is None else device
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(str(device))
        self._machine = machine

    def __enter__(self) -> _OpenFile:
        self._inner.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._inner.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        part = self._inner.get_slice(name)
        shape, dtype = part.get_shape(), DTYPES.get(part.get_dtype())
        stub = self._inner if isinstance(self._inner, Stub) else None
        if stub is not None and (content := stub.content(name)) is not None and dtype is not None:
            tensor = torch.frombuffer(bytearray(content), dtype=dtype).view(shape) if content else torch.empty(shape)
        elif dtype is None or (stub is None and keeps_values(math.prod(shape), dtype)):
            tensor = self._inner.get_tensor(name)
        else:
            tensor = without_data(self._machine, shape, dtype)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)

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
