"""The cards in gpus.toml, and finding one by whatever name a person gives it."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.units import MIB
from vramcast.gpus.spec import GpuSpec, model_context_bytes, model_total_memory_bytes

_DATA = Path(__file__).with_name("gpus.toml")
_GIGA = 10**9
_RATES = ("fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops", "sustained_bf16_tflops")
# Words that people leave out or put in as they like.
_NOISE = re.compile(r"nvidia|geforce|tesla|graphics|gpu")
_MEMORY_WISH = re.compile(r"\d+(\.\d+)?\s*(g|gb|gib|m|mb|mib)", re.IGNORECASE)


@cache
def all_gpus() -> tuple[GpuSpec, ...]:
    """Every known card, in the order of the file."""
    document = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    return tuple(_read_entry(entry, document["sources"]) for entry in document["gpu"])


def find_gpu(name: str) -> GpuSpec:
    """The card called `name`: an id, any spelling of its name ("4090", "A100-SXM4-80GB"), or a size ("24GiB")."""
    if _MEMORY_WISH.fullmatch(name.strip()):
        return GpuSpec.from_memory(name)
    known = _by_key()
    spec = known.get(_key(name)) or known.get(_key(name).removeprefix("rtx"))
    if spec is None:
        raise UsageError(_which_size(name) or f"unknown GPU {name!r}; {_suggestion(name)}")
    return spec


@cache
def _by_key() -> dict[str, GpuSpec]:
    keys: dict[str, GpuSpec] = {}
    for spec in all_gpus():
        for spelling in (spec.id, spec.name, *spec.aliases):
            keys.setdefault(_key(spelling), spec)
            keys.setdefault(_key(spelling).removeprefix("rtx"), spec)
    return keys


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub("", name.lower()))


def _which_size(name: str) -> str | None:
    """A question, for the name of a card that is sold with different amounts of memory."""
    stem = re.sub(r"sxm\d?|pcie", "", _key(name))
    found = {spec.id: spec.memory_mib for spec in all_gpus() if stem and re.match(rf"{stem}\d+gb", _key(spec.id))}
    if len(set(found.values())) < 2:
        return None
    sizes = " and ".join(f"{round(mib / 1024)}" for mib in sorted(set(found.values())))
    return f"{name}: which one? It comes with {sizes} GB: {', '.join(found)}"


def _suggestion(name: str) -> str:
    import difflib

    known = _by_key()
    wanted = _key(name)
    close = [key for key in known if wanted and (wanted in key or key in wanted)]
    close += difflib.get_close_matches(wanted, known, n=6, cutoff=0.6)
    ids = list(dict.fromkeys(known[key].id for key in close))[:6]
    if ids:
        return f"did you mean {', '.join(ids)}? `vramcast gpus` lists all, and a size such as 24GiB works too"
    return "`vramcast gpus` lists the known ones, and a size such as 24GiB works too"


def _read_entry(entry: dict[str, Any], sources: dict[str, str]) -> GpuSpec:
    cited: dict[str, str] = {}

    def figure(key: str, field: str) -> Any:
        if key not in entry:
            return None
        value, source = entry[key]
        cited[field] = sources[source]
        return value

    def scaled(key: str, field: str, factor: int) -> Any:
        value = figure(key, field)
        return None if value is None else value * factor

    capability: tuple[int, int] = tuple(entry["compute_capability"])
    memory_mib = figure("memory_mib", "memory_mib")
    total_bytes = scaled("total_memory_mib", "total_memory_bytes", MIB)
    context_bytes = scaled("context_mib", "context_bytes", MIB)
    sm_count = figure("sm_count", "sm_count")
    l2_bytes = scaled("l2_mib", "l2_bytes", MIB)
    rates = {key: figure(key, key) for key in _RATES}
    if total_bytes is None:
        cited["total_memory_bytes"] = "modelled from memory_mib"
    if context_bytes is None:
        cited["context_bytes"] = "modelled from sm_count and compute_capability"
    return GpuSpec(
        id=entry["id"],
        name=entry["name"],
        family=entry["family"],
        aliases=tuple(entry.get("aliases", ())),
        compute_capability=capability,
        memory_mib=memory_mib,
        total_memory_bytes=model_total_memory_bytes(memory_mib) if total_bytes is None else total_bytes,
        total_memory_modelled=total_bytes is None,
        sm_count=sm_count,
        l2_bytes=None if l2_bytes is None else int(l2_bytes),
        bandwidth_bytes_per_second=scaled("bandwidth_gb_per_s", "bandwidth_bytes_per_second", _GIGA),
        link=entry.get("link"),
        link_bytes_per_second=scaled("link_gb_per_s", "link_bytes_per_second", _GIGA),
        context_bytes=model_context_bytes(sm_count, capability) if context_bytes is None else context_bytes,
        context_modelled=context_bytes is None,
        sources=cited,
        **rates,
    )
