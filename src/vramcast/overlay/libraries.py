"""Compiled code that opens files by name: which argument is the path, and whether it is written."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.overlay.calls import Calls

READ, REPLACE, CHANGE = "read", "replace", "change"

# Module → (name in it, position of the path, its name, what happens to the file).
FUNCTIONS: dict[str, tuple[tuple[str, int, str, str], ...]] = {
    "torch": (
        ("_C.PyTorchFileWriter", 0, "file_name", REPLACE),
        ("_C.PyTorchFileReader", 0, "name", READ),
        ("_C.import_ir_module", 1, "filename", READ),
        ("UntypedStorage.from_file", 0, "filename", READ),
        ("from_file", 0, "filename", READ),
        ("jit.RecursiveScriptModule.save", 1, "f", REPLACE),
    ),
    "safetensors._safetensors_rust": (("serialize_file", 1, "filename", REPLACE), ("safe_open", 0, "filename", READ)),
    "tokenizers": (("Tokenizer.save", 1, "path", REPLACE), ("Tokenizer.from_file", 0, "path", READ)),
    "tokenizers.models": tuple((f"{kind}.save", 1, "folder", CHANGE) for kind in ("BPE", "Unigram", "WordPiece")),
    "sqlite3.dbapi2": (("connect", 0, "database", CHANGE),),
    "_gdbm": (("open", 0, "filename", CHANGE),),
    "_dbm": (("open", 0, "filename", CHANGE),),
    "h5py": (("File.__init__", 1, "name", CHANGE),),
    "lmdb": (("open", 0, "path", READ), ("Environment", 0, "path", READ)),
    "cv2": (("imwrite", 0, "filename", REPLACE), ("VideoWriter", 0, "filename", REPLACE)),
    "soundfile": (("SoundFile.__init__", 1, "file", CHANGE),),
    "pyarrow.lib": (("OSFile", 0, "path", CHANGE), ("memory_map", 0, "path", READ)),
}

_MODES = {"r": READ, "rb": READ, "w": REPLACE, "wb": REPLACE, "x": REPLACE}


class Libraries(importlib.abc.MetaPathFinder):
    """Replaces the functions of the modules that are there, and of the others as soon as they are imported."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._looking: set[str] = set()

    def install(self) -> None:
        for name in FUNCTIONS:
            if name in sys.modules:
                self._replace(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in FUNCTIONS or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Followed(spec.loader, self._replace)
        return spec

    def _replace(self, module: ModuleType) -> None:
        for name, position, keyword, use in FUNCTIONS[module.__name__]:
            *parts, last = name.split(".")
            owner: Any = module
            for part in parts:
                owner = getattr(owner, part, None)
            original = getattr(owner, last, None)
            if original is None:
                continue
            stand_in = self._with_path(original, position, keyword, use)
            if inspect.isclass(owner) and isinstance(inspect.getattr_static(owner, last), (staticmethod, classmethod)):
                stand_in = staticmethod(stand_in)
            try:
                self._calls.put(owner, last, stand_in)
            except TypeError:  # a type that cannot be changed
                continue
            if owner is module:
                self._everywhere(last, original, stand_in)

    def _everywhere(self, name: str, original: Any, stand_in: Any) -> None:
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and vars(module).get(name) is original:
                self._calls.put(module, name, stand_in)

    def _with_path(self, original: Callable[..., Any], position: int, keyword: str, use: str) -> Any:
        @functools.wraps(original, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            given = args[position] if len(args) > position else kwargs.get(keyword)
            if not self._calls.applies() or not _is_path(given):
                return original(*args, **kwargs)
            mode = kwargs.get("mode", args[position + 1] if len(args) > position + 1 else None)
            how = _MODES.get(mode, use) if use == CHANGE and isinstance(mode, str) else use
            if how == READ:
                path = self._calls.for_reading(given)
            else:
                path = self._calls.for_writing(given, keep=how == CHANGE)
            if len(args) > position:
                args = (*args[:position], path, *args[position + 1 :])
            else:
                kwargs[keyword] = path
            return original(*args, **kwargs)

        return call


def _is_path(given: Any) -> bool:
    if not isinstance(given, (str, bytes, os.PathLike)):
        return False
    text = os.fsdecode(given)
    return bool(text) and not text.startswith((":", "file:")) and "://" not in text


class _Followed(importlib.abc.Loader):
    def __init__(self, inner: Any, then: Callable[[ModuleType], None]) -> None:
        self._inner, self._then = inner, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
