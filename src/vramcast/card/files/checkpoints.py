"""Saving and loading: files as large as on the card's machine that hold nothing, and weights on disk that are not read.

torch.save of tensors without data writes the very file that it would write, with a hole in place of every storage that
is not known here. Such a file can be renamed, linked, copied and loaded again; outside of a prediction it does not load
and says why. torch.load and safetensors give tensors without data for everything that is not small: only headers are
read.

Where no overlay lies over the disk (`overlay.active()`), a file that is there is never replaced by one without data.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import os
import pickle
import sys
import tempfile
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from vramcast import overlay
from vramcast.card.device.one_card import CARD, check_ordinal
from vramcast.card.dispatch.storages import (
    ATTRIBUTE,
    GPU,
    HOST,
    UNKNOWN_CONTENT,
    Block,
    attach,
    block_of,
    known_values,
)
from vramcast.card.dispatch.unknown import caller
from vramcast.card.files.safetensors_stubs import NAMES, Stub, is_stub, read_stub, stub_of
from vramcast.card.values import known_values as values
from vramcast.overlay.writes import NO_DATA

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches

_MMAP_ABOVE_BYTES = 1 << 20

_LARGEST_IN_MEMORY_BYTES = 1 << 28
"""A buffer in memory has no holes. What is larger is saved there without room for its data."""

_SAVERS = ("safetensors", "transformers", "accelerate", "diffusers", "peft", "huggingface_hub")
"""Packages that save on a program's behalf: the note names the program's own line."""

_TAG = " [written by a vramcast prediction, holds no weights]"
"""Behind the location of a storage that is a hole; torch shows it where it does not know the location."""

_SCRIPTED = b"A TorchScript module saved by a vramcast prediction, without its weights: number "


class Checkpoints:
    """One instance per virtual GPU."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._kept: dict[str, bytes] = {}
        """Path → what the program believes to be there, where a real file stays."""
        self._scripted: list[weakref.ref[Any]] = []
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
        self._install_safetensors(put)

    # -- torch.save -----------------------------------------------------------------------------------------

    def _saver(self, original: Callable[..., None]) -> Callable[..., None]:
        def save(
            obj: Any, f: Any, pickle_module: Any = pickle, pickle_protocol: int = torch.serialization.DEFAULT_PROTOCOL,
            _use_new_zipfile_serialization: bool = True, **options: Any,
        ) -> None:  # fmt: skip
            rest = (pickle_module, pickle_protocol, _use_new_zipfile_serialization)
            if not self._machine.ledger.open or not holds_virtual(obj):
                return original(obj, f, *rest, **options)
            if isinstance(f, (str, os.PathLike)) and self._must_stay(os.fspath(f)):
                buffer = io.BytesIO()
                self._compactly(original, obj, buffer, *rest, **options)
                self._kept[os.path.abspath(f)] = buffer.getvalue()
                return None
            self._note_use(f)
            missing = sum(_holes_in(obj))
            if _use_new_zipfile_serialization and (missing <= _LARGEST_IN_MEMORY_BYTES or _takes_holes(f)):
                return self._save_zip(obj, f, pickle_module, pickle_protocol)
            with _opened(f) as file:
                self._compactly(original, obj, file, *rest, **options)
                if _takes_holes(file):  # in the old format nothing reads on behind the end
                    file.flush()
                    file.truncate(file.tell() + missing)
                    file.seek(0, os.SEEK_END)
            return None

        return save

    def _save_zip(self, obj: Any, f: Any, pickle_module: Any, pickle_protocol: int) -> None:
        target = os.fspath(f) if isinstance(f, os.PathLike) else f
        if not isinstance(target, str) and not _takes_holes(target):
            target = _Filled(target)
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

    def _must_stay(self, path: str) -> bool:
        if overlay.active() is not None or not os.path.exists(path) or _is_of_a_prediction(path):
            return False
        name = os.path.basename(path)
        text = f"{name} is left as it is: what would replace it has no data here"
        self._machine.note("checkpoint", text, caller(*_SAVERS))
        return True

    def _note_use(self, f: Any) -> None:
        """In an overlay the file is gone with the run; elsewhere somebody may find it."""
        if overlay.active() is None and (name := _name_of(f)) is not None:
            text = f"{os.path.basename(name)} holds no data: it cannot be used after this run"
            self._machine.note("checkpoint", text, caller(*_SAVERS))

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
            return location if block.values is not None else location + _TAG
        return "cpu" + _TAG if hasattr(storage, UNKNOWN_CONTENT) else None

    # -- torch.load -----------------------------------------------------------------------------------------

    def _loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._machine.ledger.open:
                return original(f, map_location, *args, **kwargs)
            kept = self._kept.get(os.path.abspath(f)) if isinstance(f, (str, os.PathLike)) else None
            before, self._map_location = self._map_location, map_location
            try:
                with torch.serialization.safe_globals([_rebuild, written_by_a_prediction_and_without_its_data]):
                    if kept is not None:
                        kwargs = {name: value for name, value in kwargs.items() if name != "mmap"}
                        return original(io.BytesIO(kept), map_location, *args, **kwargs)
                    path = _path_of(f)
                    if kwargs.get("mmap") is None and path is not None and _can_be_mapped(path):
                        kwargs["mmap"] = True
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
            if not any(_is_without_data(tensor) for tensor in tensors):
                return original(module, f, *args, **kwargs)
            if isinstance(f, (str, os.PathLike)) and self._must_stay(os.fspath(f)):
                return None
            self._note_use(f)
            self._scripted.append(weakref.ref(module))
            with _opened(f) as file:
                file.write(_SCRIPTED + b"%d\n" % (len(self._scripted) - 1))
                _leave_hole(file, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
            return None

        return save

    def _script_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            beginning = _beginning(f)
            if not self._machine.ledger.open or not beginning.startswith(_SCRIPTED):
                return original(f, *args, **kwargs)
            number = int(beginning[len(_SCRIPTED) :].split(b"\n")[0])
            module = self._scripted[number]() if number < len(self._scripted) else None
            if module is None:
                raise RuntimeError("a TorchScript module that this run saved is loaded after it was deleted")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # copies of parameters are asked for their gradients
                return copy.deepcopy(module)

        return load

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
            kept = self._kept.get(os.path.abspath(filename))
            stub = read_stub(filename) if kept is None else Stub(kept)
            return _Reader(stub or original(filename, framework, "cpu", **options), device, self._machine)

        return safe_open

    def _bytes_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(data: bytes) -> Any:
            if not self._machine.ledger.open or not is_stub(data):
                return original(data)
            return _Reader(Stub(data), "cpu", self._machine).get_tensors()

        return load

    def _flattener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def flatten(tensors: Any, *args: Any) -> Any:
            if isinstance(tensors, dict) and any(_is_without_data(t) for t in tensors.values()):
                return _Tensors(tensors)
            return original(tensors, *args)

        return flatten

    def _serializer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def serialize(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(tensors, _Tensors):
                return original(tensors, *args, **kwargs)
            named = original.__name__ == "serialize_file"
            metadata = kwargs.get("metadata", args[-1] if len(args) > named else None)
            known = {name: _content(tensor) for name, tensor in tensors.items()}
            usable = named and overlay.active() is not None
            header, missing = stub_of(tensors, metadata, known, usable=usable)
            if not named:
                return header + bytes(missing if missing <= _LARGEST_IN_MEMORY_BYTES else 0)
            path = os.fspath(args[0] if args else kwargs["filename"])
            if self._must_stay(path):
                self._kept[os.path.abspath(path)] = header
                return None
            self._note_use(path)
            with open(path, "wb") as file:
                file.write(header)
                _leave_hole(file, missing)
            return None

        return serialize


class _Tensors(dict[str, torch.Tensor]):
    """What safetensors is to write, some of it without data."""


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
        if block is not None and block.values is not None:
            self._inner.write_record(name, block.values, size)
        elif block is not None or storage.device.type == "meta" or hasattr(storage, UNKNOWN_CONTENT):
            self._inner.write_record_metadata(name, size)
        else:
            self._inner.write_record(name, storage, size)


class _Filled:
    """A file that cannot have holes: they are filled with zeros."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        self._file.write(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_CUR:
            return self._file.seek(offset, whence)  # type: ignore[no-any-return]
        self._file.write(bytes(offset))
        return offset


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


def _content(tensor: torch.Tensor) -> bytes | None:
    """What a tensor holds, where that is known."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        known = tensor.detach() if not _is_without_data(tensor) else known_values(tensor)
        if known is None:
            return None
        whole = known.contiguous().reshape(-1)
        return bytes(whole.view(torch.uint8).numpy()) if whole.numel() else b""


def _takes_holes(f: Any) -> bool:
    """A file on disk that is written where its position is."""
    if isinstance(f, (str, os.PathLike)):
        return True
    inner = getattr(f, "file", f) if isinstance(f, tempfile._TemporaryFileWrapper) else f
    if not isinstance(inner, (io.BufferedWriter, io.BufferedRandom, io.FileIO)) or not inner.seekable():
        return False
    return "a" not in getattr(inner, "mode", "a")


def _leave_hole(file: Any, size: int) -> None:
    if _takes_holes(file):
        file.flush()
        end = file.tell() + size
        file.truncate(end)
        file.seek(end)
    else:
        file.write(bytes(min(size, _LARGEST_IN_MEMORY_BYTES)))


@contextlib.contextmanager
def _opened(f: Any) -> Iterator[Any]:
    if isinstance(f, (str, os.PathLike)):
        with open(f, "wb") as file:
            yield file
    else:
        yield f


def _name_of(f: Any) -> str | None:
    """The file behind a path or an open file; None for a buffer in memory."""
    if isinstance(f, (str, os.PathLike)):
        return os.fspath(f)
    name = getattr(f, "name", None)
    return name if isinstance(name, str) and not isinstance(f, io.BytesIO) else None


def _beginning(f: Any, size: int = 4096) -> bytes:
    if isinstance(f, (str, os.PathLike)):
        try:
            with open(f, "rb") as file:
                return file.read(size)
        except OSError:
            return b""
    here = f.tell()
    beginning: bytes = f.read(size)
    f.seek(here)
    return beginning


def _is_of_a_prediction(path: str) -> bool:
    beginning = _beginning(path)
    marks = (written_by_a_prediction_and_without_its_data.__name__.encode(), NO_DATA.encode(), _SCRIPTED)
    return is_stub(beginning) or any(mark in beginning for mark in marks)


def holds_virtual(obj: Any) -> bool:
    """Whether pickling `obj` would meet a tensor without (real) data."""
    return next(_holes_in(obj), None) is not None


def _holes_in(obj: Any) -> Iterator[int]:
    """Bytes of each storage without data that pickling `obj` would meet."""
    scan = _Scan()
    with contextlib.suppress(Exception):  # whatever cannot be pickled is torch.save's to complain about
        scan.dump(obj)
    yield from scan.holes.values()


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


class _Scan(pickle.Pickler):
    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=pickle.HIGHEST_PROTOCOL)
        self.holes: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        return "storage" if torch.is_storage(obj) or isinstance(obj, torch.UntypedStorage) else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            if _is_without_data(obj):
                with torch._C.DisableTorchFunction():
                    storage = obj.untyped_storage()
                    self.holes[storage._cdata] = storage.nbytes()
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


def _path_of(f: Any) -> str | None:
    """The path of a file that is read from its beginning, whether it is given by name or already open."""
    if isinstance(f, (str, os.PathLike)):
        return os.fspath(f)
    if not isinstance(f, (io.BufferedReader, io.BufferedRandom)) or sys.platform != "linux":
        return None
    try:
        return f"/proc/self/fd/{f.fileno()}" if f.tell() == 0 else None
    except OSError:
        return None


def _can_be_mapped(path: str) -> bool:
    if not os.path.isfile(path) or os.path.getsize(path) < _MMAP_ABOVE_BYTES:
        return False
    with open(path, "rb") as file:
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
        stub = self._inner if isinstance(self._inner, Stub) else None
        if stub is not None and (content := stub.content(name)) is not None and dtype is not None:
            tensor = torch.frombuffer(bytearray(content), dtype=dtype).view(shape) if content else torch.empty(shape)
        elif dtype is None or (stub is None and _keeps_values(math.prod(shape), dtype)):
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


DTYPES = {name: dtype for dtype, name in NAMES.items()}


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
