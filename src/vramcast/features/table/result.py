"""Cards × sizes × batches: what each takes, or the largest batch that each holds."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.gpus import GpuSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    gpu: GpuSpec
    size: str
    """The resolution or sequence length as it was asked for; empty where there is only one."""
    batch: int
    """The largest that fits, or the one asked for; 0: not even one sample fits."""
    fits: bool
    device_bytes: int
    """What the batch takes; where not even one sample fits, what one would need."""
    limit_bytes: int
    margin: float = 0.0
    """Share of what the largest batch takes that stays free beside it."""
    problem: str = ""
    """Why there is no figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTable:
    job: str
    size_name: str
    """resolution, sequence, or empty"""
    gpus: tuple[GpuSpec, ...]
    sizes: tuple[str, ...]
    batches: tuple[int, ...]
    """Those asked for; empty: the largest was searched."""
    cells: tuple[Cell, ...]
    traces: int
    """How many runs were traced for it."""

    def cell(self, gpu: GpuSpec, size: str, batch: int | None = None) -> Cell:
        return next(
            cell
            for cell in self.cells
            if cell.gpu is gpu and cell.size == size and (batch is None or cell.batch == batch)
        )

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{cell.size}: {cell.problem}" for cell in self.cells if cell.problem))

    @property
    def size_does_not_matter(self) -> bool:
        """Every size gave the same: nothing in the job uses it."""
        figures = {(cell.gpu.id, cell.batch, cell.device_bytes) for cell in self.cells}
        return len(self.sizes) > 1 and not self.problems and len(figures) * len(self.sizes) == len(self.cells)
