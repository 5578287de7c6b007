"""What is known of the cards in this machine at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.base.errors import UsageError
from vramcast.gpus.catalogue import find_gpu
from vramcast.gpus.spec import GpuSpec


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    name: str
    used_bytes: int | None
    """None where the driver does not say (containers, MIG, Windows)."""
    user: str | None = None
    """None where the process cannot be seen from here: another container's, or it has just ended."""
    kind: str = "compute"
    """compute, graphics, or both."""


@dataclass(frozen=True, slots=True)
class MigPlace:
    """A part of a card that is divided into instances (Multi-Instance GPU)."""

    card: int
    """As nvidia-smi counts them."""
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """One card, or one MIG instance of a card, and what is free on it. None: it does not say."""

    index: int
    """As CUDA counts: 0 is the first visible one."""
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    """As nvidia-smi shows it: without what the driver keeps for itself."""
    free_bytes: int
    reserved_bytes: int | None = None
    """What the driver keeps for itself."""
    busy_percent: int | None = None
    """Share of the last moments in which a kernel ran."""
    temperature_celsius: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    """Largest first."""
    processes_known: bool = True
    """False: the driver does not list them, which is not the same as none."""
    mig: MigPlace | None = None

    def spec(self) -> GpuSpec:
        """What is known of the card; of one that is not in gpus.toml, or an instance, only the size."""
        card, instance, _ = self.name.partition(" MIG ")
        try:
            known = find_gpu(card)
        except UsageError:
            return GpuSpec.from_memory(self.total_bytes)
        if instance or self.mig is not None:
            return GpuSpec.from_memory(self.total_bytes, compute_capability=known.compute_capability)
        return known


@dataclass(frozen=True, slots=True)
class CardProblem:
    """A card that is there and could not be read."""

    index: int
    """As nvidia-smi counts them."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The cards of this machine, those that do not answer, and where there is none: why."""

    cards: tuple[LocalGpu, ...] = ()
    problems: tuple[CardProblem, ...] = ()
    driver: str | None = None
    why_none: str = ""
    """Only where there is no card to show."""
