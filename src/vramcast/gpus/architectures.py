"""What all cards of one compute capability have in common: one entry an architecture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    threads_per_sm: int
    """Resident threads of a multiprocessor."""
    blocks_per_sm: int
    shared_bytes_per_block: int
    """The most that a block may ask for."""
    host_bytes_per_second: float
    """PCI Express x16 in one direction, of the generation that its cards have."""


_PCIE_3, _PCIE_4, _PCIE_5 = 16e9, 32e9, 64e9

_ARCHITECTURES = {
    (6, 0): Architecture(2048, 32, 49152, _PCIE_3),
    (6, 1): Architecture(2048, 32, 49152, _PCIE_3),
    (7, 0): Architecture(2048, 32, 98304, _PCIE_3),
    (7, 5): Architecture(1024, 16, 65536, _PCIE_3),
    (8, 0): Architecture(2048, 32, 166912, _PCIE_4),
    (8, 6): Architecture(1536, 16, 101376, _PCIE_4),
    (8, 7): Architecture(1536, 16, 166912, _PCIE_4),
    (8, 9): Architecture(1536, 24, 101376, _PCIE_4),
    (9, 0): Architecture(2048, 32, 232448, _PCIE_5),
    (10, 0): Architecture(2048, 32, 232448, _PCIE_5),
    (10, 3): Architecture(2048, 32, 232448, _PCIE_5),
    (12, 0): Architecture(1536, 24, 101376, _PCIE_5),
}


def architecture(compute_capability: tuple[int, int]) -> Architecture:
    """That of the capability; of one that is not listed, that of the newest before it."""
    older = [known for known in _ARCHITECTURES if known <= compute_capability]
    return _ARCHITECTURES[max(older, default=min(_ARCHITECTURES))]
