"""Saving and loading: files as large as on the card's machine that hold nothing, and weights on disk that are not read.

torch.save of tensors without data writes the very file that it would write, with a hole in place of every storage that
is not known here. Such a file can be renamed, linked, copied and loaded again; outside of a prediction it does not load
and says why. torch.load and safetensors give tensors without data for everything that is not small: only headers are
read.

Where no overlay lies over the disk (`overlay.active()`), a file that is there is never replaced by one without data.
"""

from __future__ import annotations

import copy
import io
import math
import os
import pickle
import sys
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from vramcast import overlay
from vramcast.card.device.one_card import CARD, check_ordinal
from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, HOST, UNKNOWN_CONTENT, block_of, known_content, known_values
from vramcast.card.dispatch.unknown import caller
from vramcast.card.files.holes import (
    LARGEST_IN_MEMORY_BYTES,
    FilledFile,
    beginning_of,
    leave_hole,
    opened,
    path_of,
    takes_holes,
)
from vramcast.card.files.missing_data import holds_virtual, holes_in, is_without_data
from vramcast.card.files.real_files import SCRIPTED, RealFiles
from vramcast.card.files.safetensors_files import SafetensorsFiles
from vramcast.card.values import known_values as values
from vramcast.overlay.writes import NO_DATA

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches

_MMAP_ABOVE_BYTES = 1 << 20

_TAG = " [written by a vramcast prediction, holds no weights]"
"""Behind the location of a storage that is a hole; torch shows it where it does not know the location."""


class Checkpoints:
    """One instance per virtual GPU."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._real_files = RealFiles(machine)
        self._safetensors = SafetensorsFiles(machine, self._real_files)
        self._scripted: list[weakref.ref[Any]] = []
        self._mapped: set[tuple[int, int]] = set()
        """Files (device, inode) that were mapped although the program did not ask for it."""
        self._map_location: Any = None
        self._writer: _Writer | None = None
        self._is_hole = False
        self._quiet = False

    def install(self, put: Patches) -> None:
        put.set(sys.modules[__name__], "_active", self)  # pickle can name a function of a module, not a method
        put.set(torch, "save", self._saver(torch.save))
        put.set(torch, "load", self._loader(torch.load))
        put.set(torch.Tensor, "_reduce_ex_internal", self._reducer(torch.Tensor._reduce_ex_internal))
        serialization = torch.serialization
        registry = serialization._package_registry
        put.set(serialization, "_package_registry", [(-1, self._tag, self._restore), *registry])
        put.set(serialization, "_get_restore_location", self._with_holes(serialization._get_restore_location))
        put.set(torch.UntypedStorage, "cuda", lambda storage, *a, **k: self._restore(storage, "cuda"))
        put.set(torch.jit, "save", self._script_saver(torch.jit.save))
        put.set(torch.jit, "load", self._script_loader(torch.jit.load))
        module_type = torch.jit._script.RecursiveScriptModule
        put.set(module_type, "save", self._script_saver(module_type.save))
        self._safetensors.install(put)

    # -- torch.save -----------------------------------------------------------------------------------------

    def _saver(self, original: Callable[..., None]) -> Callable[..., None]:
        def save(
            obj: Any, f: Any, pickle_module: Any = pickle, pickle_protocol: int = torch.serialization.DEFAULT_PROTOCOL,
            _use_new_zipfile_serialization: bool = True, **options: Any,
        ) -> None:  # fmt: skip
            rest = (pickle_module, pickle_protocol, _use_new_zipfile_serialization)
            self._leave_mapped(f)
            if not self._machine.ledger.open or not holds_virtual(obj):
                return original(obj, f, *rest, **options)
            if isinstance(f, (str, os.PathLike)) and self._real_files.must_stay(os.fspath(f)):
                buffer = io.BytesIO()
                self._compactly(original, obj, buffer, *rest, **options)
                self._real_files.kept[os.path.abspath(f)] = buffer.getvalue()
                return None
            self._real_files.note_use(f)
            missing = sum(holes_in(obj))
            if _use_new_zipfile_serialization and (missing <= LARGEST_IN_MEMORY_BYTES or takes_holes(f)):
                return self._save_zip(obj, f, pickle_module, pickle_protocol)
            with opened(f) as file:
                self._compactly(original, obj, file, *rest, **options)
                if takes_holes(file):  # in the old format nothing reads on behind the end
                    file.flush()
                    file.truncate(file.tell() + missing)
                    file.seek(0, os.SEEK_END)
            return None

        return save

    def _leave_mapped(self, f: Any) -> None:
        """Tensors that were loaded from a file which is now written again keep what they were loaded from."""
        if isinstance(f, (str, os.PathLike)):
            with suppress(OSError):
                if _file_of(f) in self._mapped:
                    os.unlink(os.path.realpath(f))

    def _save_zip(self, obj: Any, f: Any, pickle_module: Any, pickle_protocol: int) -> None:
        target = os.fspath(f) if isinstance(f, os.PathLike) else f
        if not isinstance(target, str) and not takes_holes(target):
            target = FilledFile(target)
        settings = torch.serialization._serialization_tls
        before = self._writer, settings.skip_data
        try:
            with torch.serialization._open_zipfile_writer(target) as opened:
                self._writer = _Writer(opened)
                torch.serialization._save(_OfAPrediction(obj), self._writer, pickle_module, pickle_protocol, False)
        finally:
            self._writer, settings.skip_data = before

    def _compactly(self, original: Callable[..., None], obj: Any, *args: Any, **options: Any) -> None:
        """Shapes and known contents only."""
        before, self._quiet = self._quiet, True
        try:
            original(obj, *args, **options)
        finally:
            self._quiet = before

    def _reducer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _reduce_ex_internal(tensor: torch.Tensor, proto: int) -> Any:
            with torch._C.DisableTorchFunction():
                block = block_of(tensor) if tensor.is_meta else None
                if block is None or tensor.layout is not torch.strided:
                    return original(tensor, proto)
                if self._writer is not None:
                    return _by_storage(tensor)
                shape, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
                requires_grad, is_gpu = tensor.requires_grad, block.device == GPU
                content = None
                if block.values is not None and tensor.numel() <= values.LIMIT_EXACT:
                    known = known_values(tensor)
                    content = None if known is None else known.clone()
                nbytes = tensor.numel() * tensor.element_size()
            if not self._quiet and overlay.active() is None:
                self._machine.note("checkpoint", "tensors without data are pickled: do not use that file", caller())
            missing = f"{NO_DATA}:{nbytes};" if content is None else ""
            return _rebuild, (shape, stride, dtype, is_gpu, requires_grad, content, missing)

        return _reduce_ex_internal

    def _tag(self, storage: Any) -> str | None:
        """Where a storage lies, as torch writes it into the file."""
        if self._writer is not None:
            self._writer.meets(storage)
        block = storage.__dict__.get(ATTRIBUTE) if isinstance(storage, torch.UntypedStorage) else None
        if block is not None:
            location = f"cuda:{block.card}" if block.device == GPU else "cpu"
            return location if known_content(block) is not None else location + _TAG
        return "cpu" + _TAG if hasattr(storage, UNKNOWN_CONTENT) else None

    # -- torch.load -----------------------------------------------------------------------------------------

    def _loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._machine.ledger.open:
                return original(f, map_location, *args, **kwargs)
            kept = self._real_files.kept.get(os.path.abspath(f)) if isinstance(f, (str, os.PathLike)) else None
            before, self._map_location = self._map_location, map_location
            try:
                with torch.serialization.safe_globals([_rebuild, written_by_a_prediction_and_without_its_data]):
                    if kept is not None:
                        kwargs = {name: value for name, value in kwargs.items() if name != "mmap"}
                        return original(io.BytesIO(kept), map_location, *args, **kwargs)
                    path = path_of(f)
                    if kwargs.get("mmap") is None and path is not None and _can_be_mapped(path):
                        kwargs["mmap"] = True
                        self._mapped.add(_file_of(path))
                        return original(path, map_location, *args, **kwargs)
                    return original(f, map_location, *args, **kwargs)
            finally:
                self._map_location = before

        return load

    def _with_holes(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Storages that are holes come back without data, on whichever device they are loaded to."""

        def _get_restore_location(map_location: Any) -> Callable[..., Any]:
            restore = original(map_location)

            def restore_location(storage: Any, location: str) -> Any:
                if not location.endswith(_TAG):
                    return restore(storage, location)
                before, self._is_hole = self._is_hole, True
                try:
                    restored = restore(storage, location.removesuffix(_TAG))
                finally:
                    self._is_hole = before
                if restored.__dict__.get(ATTRIBUTE) is not None:
                    return restored
                empty = torch.UntypedStorage(storage.nbytes(), device="meta")
                self._machine.ledger.book(empty, HOST)
                return empty

            return restore_location

        return _get_restore_location

    def _restore(self, storage: Any, location: str) -> Any:
        """A storage of a file that belongs on the card: room for it, and its content where that is small."""
        if not location.startswith("cuda"):
            return None
        known = not self._is_hole and storage.nbytes() <= values.LIMIT_EXACT
        self._machine.ledger.use_card(check_ordinal(location))
        return self._on_card(storage.nbytes(), storage if known else None)

    def _on_card(self, nbytes: int, content: Any) -> torch.UntypedStorage:
        storage = torch.UntypedStorage(nbytes, device="meta")
        block = self._machine.ledger.book(storage, GPU)
        if content is not None:
            block.values = content.clone()
        return storage

    def rebuild(
        self, shape: Any, stride: Any, dtype: torch.dtype, is_gpu: bool, requires_grad: bool, content: Any, missing: str
    ) -> torch.Tensor:
        """A virtual tensor from a checkpoint, where `map_location` puts it."""
        where = self._map_location
        if isinstance(where, dict):
            where = where.get(str(CARD.device), where.get("cuda"))
        if callable(where):
            where = "cpu"
        on_gpu = is_gpu if where is None else not str(where).startswith("cpu")
        size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if math.prod(shape) else 0
        if on_gpu:
            asked_for = str(where) if str(where).startswith("cuda") else CARD.device
            self._machine.ledger.use_card(check_ordinal(asked_for))
        storage = torch.UntypedStorage(size * dtype.itemsize, device="meta")
        block = self._machine.ledger.book(storage, GPU if on_gpu else HOST)
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            tensor = torch.empty(0, dtype=dtype, device="meta").set_(storage, 0, shape, stride)
            if content is not None:
                matched = torch.empty_strided(shape, stride, dtype=dtype).copy_(content)
                if matched.untyped_storage().nbytes() == block.nbytes:
                    block.values = matched.untyped_storage()
        return tensor.requires_grad_(requires_grad)

    # -- TorchScript ----------------------------------------------------------------------------------------

    def _script_saver(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Such a module is compiled code that reads the weights itself: the file names the module that was saved."""

        def save(module: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [] if not self._machine.ledger.open else [*module.parameters(), *module.buffers()]
            if not any(is_without_data(tensor) for tensor in tensors):
                return original(module, f, *args, **kwargs)
            if isinstance(f, (str, os.PathLike)) and self._real_files.must_stay(os.fspath(f)):
                return None
            self._real_files.note_use(f)
            self._scripted.append(weakref.ref(module))
            with opened(f) as file:
                file.write(SCRIPTED + b"%d\n" % (len(self._scripted) - 1))
                leave_hole(file, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
            return None

        return save

    def _script_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            beginning = beginning_of(f)
            if not self._machine.ledger.open or not beginning.startswith(SCRIPTED):
                return original(f, *args, **kwargs)
            number = int(beginning[len(SCRIPTED) :].split(b"\n")[0])
            module = self._scripted[number]() if number < len(self._scripted) else None
            if module is None:
                raise RuntimeError("a TorchScript module that this run saved is loaded after it was deleted")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # copies of parameters are asked for their gradients
                return copy.deepcopy(module)

        return load


_active: Checkpoints | None = None


def _rebuild(*parts: Any) -> torch.Tensor:
    if _active is None:
        raise RuntimeError("this pickle was written by a run on a virtual GPU and holds no data")
    return _active.rebuild(*parts)


def written_by_a_prediction_and_without_its_data(obj: Any) -> Any:
    """Stands around everything in a file of torch.save; its name is what torch.load shows elsewhere."""
    if _active is None:
        raise RuntimeError("this file was written by a run on vramcast's virtual GPU: it holds no weights")
    return obj


class _OfAPrediction:
    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def __reduce__(self) -> Any:
        return written_by_a_prediction_and_without_its_data, (self._obj,)


class _Writer:
    """torch's writer of zip files, which leaves holes for storages without data. Once the pickle is written, torch is
    told to skip the data of storages, which it would bring to the CPU first, and hands over their names and sizes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._numbers: dict[int, int] = {}
        self._storages: list[torch.UntypedStorage] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def meets(self, storage: Any) -> None:
        """torch numbers storages as it meets them."""
        if self._numbers.setdefault(storage._cdata, len(self._storages)) == len(self._storages):
            self._storages.append(storage)

    def write_record(self, name: str, data: Any, size: int) -> None:
        self._inner.write_record(name, data, size)
        torch.serialization._serialization_tls.skip_data = True

    def write_record_metadata(self, name: str, size: int) -> None:
        storage = self._storages[int(name.removeprefix("data/"))]
        block = storage.__dict__.get(ATTRIBUTE)
        content = None if block is None else known_content(block)
        if content is not None:
            self._inner.write_record(name, content, size)
        elif block is not None or storage.device.type == "meta" or hasattr(storage, UNKNOWN_CONTENT):
            self._inner.write_record_metadata(name, size)
        else:
            self._inner.write_record(name, storage, size)


def _by_storage(tensor: torch.Tensor) -> Any:
    """Reduce a tensor of the card as torch does."""
    storage: Any = tensor.untyped_storage()
    more: tuple[Any, ...] = (tensor.dtype,)
    rebuild: Any = torch._utils._rebuild_tensor_v3
    if tensor.dtype not in torch.storage._new_dtypes():
        storage = torch.storage.TypedStorage(wrap_storage=storage, dtype=tensor.dtype, _internal=True)
        more, rebuild = (), torch._utils._rebuild_tensor_v2
    metadata = torch._utils.get_tensor_metadata(tensor)
    size, stride = tuple(tensor.size()), tensor.stride()
    hooks: Any = OrderedDict()
    args = (storage, tensor.storage_offset(), size, stride, tensor.requires_grad, hooks, *more)
    return rebuild, (*args, metadata) if metadata else args


def _file_of(path: str | os.PathLike[str]) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _can_be_mapped(path: str) -> bool:
    if not os.path.isfile(path) or os.path.getsize(path) < _MMAP_ABOVE_BYTES:
        return False
    with open(path, "rb") as file:
        return bool(torch.serialization._is_zipfile(file))
