"""The known cards as a table, and one card with all its figures and their sources."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramcast.base.units import format_gib, format_size
from vramcast.gpus import GpuSpec

_RATES = ("fp32", "tf32", "fp16", "bf16", "fp8")


def print_cards(specs: Iterable[GpuSpec], console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("id", no_wrap=True)
    table.add_column("card", overflow="fold")
    for heading in ("usable GiB", "sm", "GB/s", "bf16 TFLOP/s"):
        table.add_column(heading, justify="right")
    for spec in specs:
        bandwidth = spec.bandwidth_bytes_per_second
        table.add_row(
            spec.id,
            spec.short_name,
            f"{spec.usable_bytes / 2**30:.1f}",
            "{}.{}".format(*spec.compute_capability),
            "–" if bandwidth is None else f"{bandwidth / 1e9:.0f}",
            "–" if spec.bf16_tflops is None else f"{spec.bf16_tflops:g}",
        )
    console.print(table)


def print_card(spec: GpuSpec, console: Console) -> None:
    """Each figure with the number of its source; the sources below."""
    console.print(Text(f"{spec.name} ({spec.id})", style="bold"))
    table = Table(box=None, pad_edge=False, show_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    figures = list(_figures(spec))
    sources = list(dict.fromkeys(spec.sources[field] for _, _, field in figures if field in spec.sources))
    for label, value, field in figures:
        source = spec.sources.get(field)
        table.add_row(label, value, "" if source is None else f"({sources.index(source) + 1})")
    console.print(table)
    missing = list(_unknown(spec))
    if missing:
        console.print(Text(f"not known (no figure found that its maker published): {', '.join(missing)}"))
    console.print()
    for number, source in enumerate(sources, 1):
        console.print(Text(f"({number}) {source}", style="dim"))


def _unknown(spec: GpuSpec) -> Iterable[str]:
    """Figures that a card of its kind has, but that no source states. Formats that came later are not missing."""
    came_with = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
    for field, label in (("sm_count", "multiprocessors"), ("l2_bytes", "L2 cache"),
                         ("bandwidth_bytes_per_second", "bandwidth"), ("link_bytes_per_second", "link")):  # fmt: skip
        if getattr(spec, field) is None:
            yield label
    for name in _RATES:
        if getattr(spec, f"{name}_tflops") is None and spec.compute_capability >= came_with.get(name, (0, 0)):
            yield name


def _figures(spec: GpuSpec) -> Iterable[tuple[str, str, str]]:
    yield "compute capability", "{}.{}".format(*spec.compute_capability), "compute_capability"
    yield "nvidia-smi shows", f"{spec.memory_mib} MiB", "memory_mib"
    yield "usable", format_gib(spec.usable_bytes), "total_memory_bytes"
    yield "CUDA context", format_size(spec.context_bytes), "context_bytes"
    yield "left for PyTorch", format_gib(spec.pytorch_bytes), ""
    if spec.sm_count is not None:
        yield "multiprocessors", str(spec.sm_count), "sm_count"
    if spec.l2_bytes is not None:
        yield "L2 cache", format_size(spec.l2_bytes), "l2_bytes"
    if spec.bandwidth_bytes_per_second is not None:
        yield "bandwidth", f"{spec.bandwidth_bytes_per_second / 1e9:g} GB/s", "bandwidth_bytes_per_second"
    for name in _RATES:
        rate = getattr(spec, f"{name}_tflops")
        if rate is not None:
            yield name, f"{rate:g} TFLOP/s", f"{name}_tflops"
    if spec.link_bytes_per_second is not None:
        yield spec.link or "link", f"{spec.link_bytes_per_second / 1e9:g} GB/s", "link_bytes_per_second"
