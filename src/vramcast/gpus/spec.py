"""What is known of one GPU, and the two rules for what nobody has published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.units import GIB, KIB, MIB, format_size, parse_bytes
from vramcast.gpus.architectures import Architecture, architecture

_DEFAULT_CAPABILITY = (8, 9)
_CONTEXT_UNKNOWN_BYTES = 400 * MIB
_LARGEST_FIGURE = 2**60


def model_total_memory_bytes(memory_mib: int) -> int:
    """What torch would report for a card of which only nvidia-smi's total is known.

    The driver keeps some memory back: on 30 cards for which both figures are public, 380 MiB (8 GiB cards) to
    770 MiB (80 GiB). 350 MiB + 0.45 %, at most 640 MiB, comes within 170 MiB of each from Ampere on; older
    cards keep less back.
    """
    kept_mib = min(350 + memory_mib * 0.0045, 640)
    return int(memory_mib - kept_mib) * MIB


def model_context_bytes(sm_count: int | None, compute_capability: tuple[int, int]) -> int:
    """A bare CUDA context: it reserves local memory for every thread the card can hold at once.

    24 MiB + 1.887 KiB a resident thread passes through the three cards measured with torch 2.7 to 2.11:
    H200 518 MiB, RTX 6000 Ada 426 MiB, RTX 3090 256 MiB.
    """
    if sm_count is None:
        return _CONTEXT_UNKNOWN_BYTES
    threads = sm_count * architecture(compute_capability).threads_per_sm
    return 24 * MIB + int(threads * 1.887 * KIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One card. Rates are dense with FP32 accumulation; None means that no figure was found."""

    id: str
    name: str
    """As the driver names it."""
    family: str = "custom"
    aliases: tuple[str, ...] = ()
    compute_capability: tuple[int, int] = _DEFAULT_CAPABILITY
    memory_mib: int
    """The total that nvidia-smi shows."""
    total_memory_bytes: int
    """The total that torch reports, and that an allocation can never exceed."""
    total_memory_modelled: bool = False
    """No published figure: `model_total_memory_bytes` was used."""
    sm_count: int | None = None
    l2_bytes: int | None = None
    bandwidth_bytes_per_second: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    sustained_bf16_tflops: float | None = None
    """What large products of 16 bits reach in measurements that others published."""
    link: str | None = None
    link_bytes_per_second: float | None = None
    context_bytes: int
    """A bare CUDA context, before any kernel is loaded."""
    context_modelled: bool = False
    """No published figure: `model_context_bytes` was used."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each figure comes from, by field name."""

    def __post_init__(self) -> None:
        if self.memory_mib <= 0 or self.total_memory_bytes <= 0:
            raise UsageError(f"GPU {self.name!r}: its memory must be above zero")
        if self.context_bytes >= self.total_memory_bytes:
            raise UsageError(f"GPU {self.name!r}: a CUDA context alone would not fit its memory")

    @property
    def usable_bytes(self) -> int:
        """What a run may take of a card that nothing else uses, its CUDA context included: what verdicts are about."""
        return self.total_memory_bytes

    @property
    def pytorch_bytes(self) -> int:
        """What is left of it for PyTorch's allocator, before kernels are loaded."""
        return self.usable_bytes - self.context_bytes

    @property
    def architecture(self) -> Architecture:
        return architecture(self.compute_capability)

    @property
    def short_name(self) -> str:
        """The name people use: without the maker's."""
        return self.name.removeprefix("NVIDIA ").removeprefix("GeForce ")

    @classmethod
    def from_memory(cls, memory: str | int, *, compute_capability: tuple[int, int] = _DEFAULT_CAPABILITY) -> GpuSpec:
        """A card of which only the size matters, e.g. "24GiB"; "24GB" means the same, as on its box."""
        size_bytes = memory if isinstance(memory, int) else _card_size_bytes(memory)
        memory_mib = size_bytes // MIB
        if memory_mib < 1024:
            raise UsageError(f"a GPU of {format_size(size_bytes)} is too small for a CUDA context; write it like 24GiB")
        label = f"{size_bytes / GIB:.4g} GiB GPU"
        return cls(
            id=f"custom-{size_bytes / GIB:g}gib",
            name=label,
            compute_capability=compute_capability,
            memory_mib=memory_mib,
            total_memory_bytes=model_total_memory_bytes(memory_mib),
            total_memory_modelled=True,
            context_bytes=_CONTEXT_UNKNOWN_BYTES,
            context_modelled=True,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `from_dict` reads it back."""
        return asdict(self) | {"sources": dict(self.sources)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GpuSpec:
        values = dict(data)
        try:
            values["compute_capability"] = tuple(values["compute_capability"])
            values["aliases"] = tuple(values.get("aliases", ()))
            _check_values(values)
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"not a GPU specification: {error}") from error


def _check_values(values: Mapping[str, Any]) -> None:
    """What was read from a file: texts are texts, figures are figures that a card can have."""
    capability = values["compute_capability"]
    if len(capability) != 2 or not all(type(part) is int and 0 <= part < 1000 for part in capability):
        raise ValueError("'compute_capability' is two numbers, e.g. [8, 9]")
    for name in ("id", "name", "family", "link"):
        if not isinstance(values.get(name), str | None):
            raise ValueError(f"{name!r} is a text")
    dict(values.get("sources") or {})
    for name, value in values.items():
        if name.endswith(("_bytes", "_mib", "_count", "_tflops", "_second")) and value is not None:
            whole = name in ("memory_mib", "total_memory_bytes", "context_bytes", "sm_count", "l2_bytes")
            if type(value) not in ((int,) if whole else (int, float)) or not 0 < value < _LARGEST_FIGURE:
                raise ValueError(f"{name!r} is a number above zero")


def _card_size_bytes(text: str) -> int:
    return parse_bytes(text.lower().replace("gb", "gib").replace("mb", "mib").replace("tb", "tib"))
