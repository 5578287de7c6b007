"""safetensors files whose header is complete and whose data is missing."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

import torch

_KNOWN = "vramcast: holds data only of"
"""In the metadata: names of the tensors whose content is there, as JSON."""
_WARNING = "this file was written by a vramcast prediction and holds no weights"
"""An entry that cannot be, so that no other program reads zeros from the file; it is shown in the error."""

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64", torch.uint16: "U16",
    torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
"""The names in a header (the dtypes of the format's description)."""

_LENGTH = struct.Struct("<Q")


def stub_of(
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str] | None,
    known: Mapping[str, bytes | None],
    *,
    usable: bool,
) -> tuple[bytes, int]:
    """The beginning of the file, with what is known of the content, and how many bytes are missing behind it.
    `usable`: the format's own reader takes the file, and finds zeros."""
    order = sorted(tensors, key=lambda name: (known[name] is None, -tensors[name].element_size(), name))
    entries: dict[str, Any] = {}
    end = known_bytes = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        if known[name] is not None:
            known_bytes = end
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    told = {**(metadata or {}), _KNOWN: json.dumps([name for name in order if known[name] is not None])}
    wrong = {} if usable else {_WARNING: {"dtype": "U8", "shape": [1], "data_offsets": [end + 1, end]}}
    text = json.dumps({"__metadata__": told, **wrong, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = b"".join(part for name in order if (part := known[name]) is not None)
    return _LENGTH.pack(len(text)) + text + content, end - known_bytes


def is_stub(beginning: bytes) -> bool:
    return f'"{_KNOWN}"'.encode() in beginning[8:]


def read_stub(path: Any) -> Stub | None:
    """The file, if it is one of ours."""
    try:
        with open(os.fspath(path), "rb") as file:
            beginning = file.read(4096)
            if len(beginning) < _LENGTH.size or not is_stub(beginning):
                return None
            return Stub(beginning + file.read(max(0, _LENGTH.unpack(beginning[:8])[0] + 8 - len(beginning))), file)
    except OSError:
        return None


class Stub:
    """Stands for an open file of the format's own reader, as far as names and shapes go."""

    def __init__(self, data: bytes, file: Any = None) -> None:
        length = _LENGTH.unpack(data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        self._metadata: dict[str, str] = header.pop("__metadata__")
        header.pop(_WARNING, None)
        self._entries: dict[str, dict[str, Any]] = header
        known = json.loads(self._metadata.pop(_KNOWN))
        end = max((self._entries[name]["data_offsets"][1] for name in known), default=0)
        content = data[8 + length :]
        if file is not None and len(content) < end:
            file.seek(8 + length)
            content = file.read(end)
        self._content = {name: content[slice(*self._entries[name]["data_offsets"])] for name in known}

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def keys(self) -> list[str]:
        return list(self._entries)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        return self._metadata or None

    def get_slice(self, name: str) -> Part:
        return Part(self._entries[name])

    def content(self, name: str) -> bytes | None:
        """What is known of a tensor."""
        return self._content.get(name)


class Part:
    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._entry = entry

    def get_shape(self) -> list[int]:
        return list(self._entry["shape"])

    def get_dtype(self) -> str:
        return str(self._entry["dtype"])
