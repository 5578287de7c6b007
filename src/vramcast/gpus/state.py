"""The cards in this machine as they are now: total, used, free, and which process uses how much. Only looks.

Asks NVML (the `gpu` extra), or nvidia-smi where its Python binding is missing. Needs no torch and creates no CUDA
context. CUDA_VISIBLE_DEVICES is heeded: device 0 is the first card that a program started from here would see.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess

from vramcast.base.errors import UsageError
from vramcast.base.processes import ending_with_this
from vramcast.base.sealing import unsealed
from vramcast.base.units import MIB
from vramcast.gpus.nvml import NvmlSession, NvmlUnavailable
from vramcast.gpus.survey import GpuProcess, LocalGpu, Survey

__all__ = ["GpuProcess", "LocalGpu", "Survey", "local_gpu", "local_gpus", "survey", "visible"]


def local_gpus() -> tuple[LocalGpu, ...]:
    """Every visible card that answers; none where there is no driver."""
    return survey().cards


def survey() -> Survey:
    """The visible cards, those that do not answer, and why there is none."""
    with unsealed():
        try:
            return visible(_by_nvml())
        except NvmlUnavailable as error:
            reason = str(error)
        cards = parse_smi_state(_smi())
    return visible(Survey(cards=tuple(cards), why_none="" if cards else reason))


def _by_nvml() -> Survey:
    with NvmlSession() as session:
        return session.survey()


def local_gpu(device: int) -> LocalGpu:
    cards_here = survey()
    for card in cards_here.cards:
        if card.index == device:
            return card
    if not cards_here.cards:
        raise UsageError(f"--device {device}: there is no NVIDIA GPU here; name one with --gpu")
    here = ", ".join(str(card.index) for card in cards_here.cards)
    raise UsageError(f"--device {device}: there is no such card here; the visible ones are {here}")


def _smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [
        program,
        "--query-gpu=index,uuid,memory.total,memory.used,memory.free,name",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=30, check=False, preexec_fn=ending_with_this()
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def parse_smi_state(text: str) -> list[LocalGpu]:
    """Lines of "index, uuid, total, used, free, name" in MiB; others are passed over."""
    cards = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",", 5)]
        if len(fields) == 6 and all(fields[i].isdigit() for i in (0, 2, 3, 4)):
            total, used, free = (int(fields[i]) * MIB for i in (2, 3, 4))
            cards.append(LocalGpu(index=int(fields[0]), uuid=fields[1], name=fields[5], total_bytes=total,
                                  used_bytes=used, free_bytes=free, processes_known=False))  # fmt: skip
    return cards


def visible(cards_here: Survey) -> Survey:
    """What CUDA_VISIBLE_DEVICES leaves, renumbered as CUDA does; it ends at the first name that is not there."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = list(cards_here.cards)
    if wanted is not None:
        cards = []
        for name in (part.strip() for part in wanted.split(",")):
            card = next((candidate for candidate in cards_here.cards if _is_called(candidate, name)), None)
            if card is None:
                break
            cards.append(card)
    why = cards_here.why_none
    if not cards and not why:
        why = "NVML lists no card"
        if cards_here.cards:
            why = f"CUDA_VISIBLE_DEVICES={wanted} hides every card"
        elif cards_here.problems:
            why = "no card answers"
    return dataclasses.replace(
        cards_here, cards=tuple(dataclasses.replace(card, index=i) for i, card in enumerate(cards)), why_none=why
    )


def _is_called(card: LocalGpu, name: str) -> bool:
    """A number means a card; an instance is named by its UUID, and of an undivided card by the beginning of it."""
    if name.isdecimal():
        place = card.index if card.mig is None else card.mig.card
        return int(name) == place
    return bool(name) and card.uuid.startswith(name)
