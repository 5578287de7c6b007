"""PYTORCH_ALLOC_CONF, read as torch 2.6 to 2.14 read it.

The keys and their rules are those of c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp. A key of any
of these versions is accepted whatever torch is installed here: the prediction may be for another machine. What the
torch of a run would refuse is said by `refused_by`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from vramcast.allocator.constants import (
    DIRECT_REQUEST_BYTES,
    LARGE_SEGMENT_BYTES,
    MIB,
    MIN_BLOCK_BYTES,
    UNLIMITED,
)
from vramcast.allocator.errors import AllocatorConfError, BackendNotModelled
from vramcast.base.torch_versions import PYTORCH_ALLOC_CONF, SPLIT_SIZE_OF_A_SEGMENT, Version, in_words

ROUNDUP_INTERVALS = 16
"""roundup_power2_divisions keeps one number for each power of two from 1 MiB to 32 GiB (and above)."""


@dataclass(frozen=True, kw_only=True)
class AllocatorConf:
    """The settings that decide where blocks go; settings for pinned host memory are accepted and dropped."""

    expandable_segments: bool = False
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    text: str = ""
    """The string this came from."""

    @classmethod
    def parse(cls, text: str | None, before: AllocatorConf | None = None) -> AllocatorConf:
        """Read a configuration string; None and "" are torch's defaults. What it does not name stays as `before`."""
        if not text:
            return cls() if before is None else before
        settings = _split(text)
        if before is None or not before.text:
            conf = cls(text=text) if before is None else replace(before, text=text)
        else:
            conf = replace(before, text=f"{before.text},{text}")
        # torch reads this key first wherever it stands: other keys' lower bounds and a default depend on it.
        for key, value in settings:
            if key == "large_segment_size_mb":
                conf = _large_segment_size(conf, value)
        if before is None or any(key == "large_segment_size_mb" for key, _ in settings):
            conf = replace(conf, max_non_split_rounding_bytes=conf.large_segment_bytes)
        for key, value in settings:
            reader = _READERS.get(key)
            if reader is None:
                raise AllocatorConfError(_unknown_key(key))
            conf = reader(conf, value)
        return conf

    def refused_by(self, version: Version) -> list[str]:
        """Why torch of this version would not start with these settings, one reason a setting."""
        reasons = []
        for key, value in _split(self.text):
            since = _SINCE.get(key, (0, 0))
            if version < since:
                reasons.append(f"torch {in_words(version)} does not know '{key}', which came with {in_words(since)}")
            elif key in _MORE_THAN_A_SEGMENT and version < SPLIT_SIZE_OF_A_SEGMENT and _integer(key, value) <= 20:
                reasons.append(f"torch {in_words(version)} wants '{key}' to be more than 20")
        return reasons

    def round_bytes(self, size_bytes: int) -> int:
        """The block size a request is rounded up to (round_size)."""
        if size_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        interval = min(max(size_bytes.bit_length() - 21, 0), ROUNDUP_INTERVALS - 1)
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and size_bytes > MIN_BLOCK_BYTES * divisions:
            return _round_to_division(size_bytes, divisions)
        return (size_bytes + MIN_BLOCK_BYTES - 1) & -MIN_BLOCK_BYTES


def from_environment(environ: Mapping[str, str], version: Version) -> str | None:
    """The settings that torch reads from these environment variables; the first one that is set counts."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if name in environ and (name != "PYTORCH_ALLOC_CONF" or version >= PYTORCH_ALLOC_CONF):
            return environ[name]
    return None


def _round_to_division(size_bytes: int, divisions: int) -> int:
    """Round up to the next of the equal divisions between two powers of two (roundup_power2_next_division)."""
    if size_bytes & (size_bytes - 1) == 0:
        return size_bytes
    floor = 1 << (size_bytes.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return -(-size_bytes // step) * step


# --- the text: key:value pairs, a value is a word or a [list] -----------------------------------------------------


def _split(text: str) -> list[tuple[str, str | list[str]]]:
    tokens = [token for token in re.split(r"([,:\[\]])", re.sub(r"\s", "", text)) if token]
    settings: list[tuple[str, str | list[str]]] = []
    at = 0
    while at < len(tokens):
        key = tokens[at]
        if key not in _READERS and key.split("=")[0] in _READERS:
            raise AllocatorConfError(f"allocator configuration: write '{key.replace('=', ':', 1)}', with a colon")
        if key in ",:[]" or key not in _READERS:
            raise AllocatorConfError(_unknown_key(key))
        if tokens[at + 1 : at + 2] != [":"] or at + 2 >= len(tokens):
            raise AllocatorConfError(f"allocator configuration: '{key}' needs a value, as in '{key}:VALUE'")
        if tokens[at + 2] == "[":
            if "]" not in tokens[at + 3 :]:
                raise AllocatorConfError(f"allocator configuration: the list of '{key}' is not closed with ']'")
            end = tokens.index("]", at + 3)
            settings.append((key, tokens[at + 3 : end]))
        else:
            end = at + 2
            settings.append((key, tokens[end]))
        if end + 1 < len(tokens) and tokens[end + 1] != ",":
            raise AllocatorConfError(f"allocator configuration: expected ',' after '{key}', found '{tokens[end + 1]}'")
        at = end + 2
    return settings


def _unknown_key(key: str) -> str:
    near = difflib.get_close_matches(key, _READERS, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(sorted(_READERS))}"
    return f"allocator configuration: unknown key '{key}'{hint}"


def _word(key: str, value: str | list[str]) -> str:
    if isinstance(value, list):
        raise AllocatorConfError(f"allocator configuration: '{key}' takes one value, not a list")
    return value


def _integer(key: str, value: str | list[str]) -> int:
    # Like std::stoull: digits at the beginning count, what follows them is ignored.
    match = re.match(r"\+?0*([0-9]+)", _word(key, value))
    if match is None:
        raise AllocatorConfError(f"allocator configuration: '{key}' needs a whole number, not '{value}'")
    if len(match[1]) > 20 or int(match[1]) >= 2**64:
        raise AllocatorConfError(f"allocator configuration: '{key}': {match[1][:20]}... is out of range")
    return int(match[1])


def _fraction(key: str, value: str | list[str]) -> float:
    try:
        return float(_word(key, value))
    except ValueError:
        raise AllocatorConfError(f"allocator configuration: '{key}' needs a number, not '{value}'") from None


def _boolean(key: str, value: str | list[str]) -> bool:
    if value not in ("True", "False"):
        raise AllocatorConfError(f"allocator configuration: '{key}' must be True or False, not '{value}'")
    return value == "True"


# --- one reader for each key -----------------------------------------------------------------------------------

_Reader = Callable[[AllocatorConf, "str | list[str]"], AllocatorConf]


def _large_segment_size(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    size_mb = _integer("large_segment_size_mb", value)
    if size_mb <= DIRECT_REQUEST_BYTES // MIB:
        raise AllocatorConfError("allocator configuration: 'large_segment_size_mb' must be greater than 10")
    return replace(conf, large_segment_bytes=size_mb * MIB)


def _at_least_a_large_segment(conf: AllocatorConf, key: str, value: str | list[str]) -> int:
    size_mb = _integer(key, value)
    least_mb = conf.large_segment_bytes // MIB
    if size_mb < least_mb:
        raise AllocatorConfError(f"allocator configuration: '{key}' must be at least {least_mb}")
    return min(size_mb, UNLIMITED // MIB) * MIB


def _max_split_size(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    return replace(conf, max_split_bytes=_at_least_a_large_segment(conf, "max_split_size_mb", value))


def _max_non_split_rounding(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    size_bytes = _at_least_a_large_segment(conf, "max_non_split_rounding_mb", value)
    return replace(conf, max_non_split_rounding_bytes=size_bytes)


def _garbage_collection_threshold(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    threshold = _fraction("garbage_collection_threshold", value)
    if not 0.0 < threshold < 1.0:
        raise AllocatorConfError("allocator configuration: 'garbage_collection_threshold' must be between 0.0 and 1.0")
    return replace(conf, garbage_collection_threshold=threshold)


def _memory_fraction(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    fraction = _fraction("per_process_memory_fraction", value)
    if not 0.0 <= fraction <= 1.0:
        raise AllocatorConfError("allocator configuration: 'per_process_memory_fraction' must be from 0.0 to 1.0")
    return replace(conf, per_process_memory_fraction=fraction)


def _roundup_power2_divisions(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    key = "roundup_power2_divisions"
    if isinstance(value, str):
        return replace(conf, roundup_power2_divisions=(_power_of_two(key, value),) * ROUNDUP_INTERVALS)
    divisions = list(conf.roundup_power2_divisions)
    first, last_interval = True, 0
    for pair in "".join(value).split(",") if value else ():
        boundary, colon, count = pair.partition(":")
        if not colon:
            raise AllocatorConfError(f"allocator configuration: '{key}' needs SIZE_MB:DIVISIONS, not '{pair}'")
        number = _power_of_two(key, count, zero_too=True)
        if boundary == ">":
            divisions[last_interval + 1 :] = [number] * (ROUNDUP_INTERVALS - last_interval - 1)
            continue
        last_interval = min(_power_of_two(key, boundary).bit_length() - 1, ROUNDUP_INTERVALS - 1)
        if first:
            divisions[:last_interval] = [number] * last_interval
            first = False
        divisions[last_interval] = number
    return replace(conf, roundup_power2_divisions=tuple(divisions))


def _power_of_two(key: str, value: str, *, zero_too: bool = False) -> int:
    number = _integer(key, value)
    if number & (number - 1) or (number == 0 and not zero_too):
        raise AllocatorConfError(f"allocator configuration: '{key}' needs powers of two, not '{value}'")
    return number


def _thread_count(key: str, value: str | list[str]) -> None:
    if _power_of_two(key, _word(key, value)) > 128:
        raise AllocatorConfError(f"allocator configuration: '{key}' must be at most 128")


def _expandable_segments(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    return replace(conf, expandable_segments=_boolean("expandable_segments", value))


def _throw_on_oom(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    return replace(conf, throw_on_cudamalloc_oom=_boolean("throw_on_cudamalloc_oom", value))


def _backend(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
    if value == "native":
        return conf
    if value == "cudaMallocAsync":
        raise BackendNotModelled(
            "allocator configuration: backend:cudaMallocAsync is not modelled: the CUDA driver's own pool decides what "
            "is reserved there. Leave the key out (or write backend:native) to predict for PyTorch's allocator."
        )
    raise AllocatorConfError(f"allocator configuration: 'backend' is native or cudaMallocAsync, not '{value}'")


def _no_effect(key: str, check: Callable[[str, str | list[str]], object]) -> _Reader:
    """A key that torch knows and that leaves device memory as it is: only its value is checked."""

    def read(conf: AllocatorConf, value: str | list[str]) -> AllocatorConf:
        check(key, value)
        return conf

    return read


_READERS: dict[str, _Reader] = {
    "backend": _backend,
    "expandable_segments": _expandable_segments,
    "garbage_collection_threshold": _garbage_collection_threshold,
    "large_segment_size_mb": _large_segment_size,
    "max_non_split_rounding_mb": _max_non_split_rounding,
    "max_split_size_mb": _max_split_size,
    "per_process_memory_fraction": _memory_fraction,
    "roundup_power2_divisions": _roundup_power2_divisions,
    "throw_on_cudamalloc_oom": _throw_on_oom,
}
for _key, _check in {
    "graph_capture_record_stream_reuse": _boolean,
    "pinned_free_catch_all": _boolean,
    "pinned_max_cached_size_mb": _integer,
    "pinned_max_round_threshold_mb": _integer,
    "pinned_num_register_threads": _thread_count,
    "pinned_reserve_segment_size_mb": _integer,
    "pinned_use_background_threads": _boolean,
    "pinned_use_cuda_host_register": _boolean,
    "pinned_use_hip_host_register": _boolean,
    "release_lock_on_cudamalloc": _boolean,
    "release_lock_on_hipmalloc": _boolean,
}.items():
    _READERS[_key] = _no_effect(_key, _check)

_SINCE: dict[str, Version] = {
    "graph_capture_record_stream_reuse": (2, 9),
    "large_segment_size_mb": (2, 11),
    "per_process_memory_fraction": (2, 10),
    "pinned_free_catch_all": (2, 12),
    "pinned_max_cached_size_mb": (2, 13),
    "pinned_max_round_threshold_mb": (2, 13),
    "pinned_reserve_segment_size_mb": (2, 10),
    "throw_on_cudamalloc_oom": (2, 12),
}
"""Keys that the oldest version does not know."""

_MORE_THAN_A_SEGMENT = ("max_split_size_mb", "max_non_split_rounding_mb")
