"""What one line of a log says, in one form for all formats."""

from __future__ import annotations

from dataclasses import dataclass, field

# Quantities, in SI units. Seconds of a phase are `phase_key(name)`.
STEP_SECONDS = "step_seconds"
STEPS_PER_SECOND = "steps_per_second"
SAMPLES_PER_SECOND = "samples_per_second"
TOKENS_PER_SECOND = "tokens_per_second"
TIME = "time"
"""A key called just "time": of a step, or since the start; which of them, the whole series says."""
MEMORY_BYTES = "memory_bytes"
MFU = "mfu"
EVALUATION_SECONDS = "evaluation_seconds"
RUN_SECONDS = "run_seconds"
RUN_SAMPLES_PER_SECOND = "run_samples_per_second"
RUN_STEPS_PER_SECOND = "run_steps_per_second"
GPU_IDLE_SECONDS = "gpu_idle_seconds"

# Settings that a log may name.
BATCH = "batch"
GLOBAL_BATCH = "global_batch"
ACCUMULATION = "accumulation"
WORLD_SIZE = "world_size"
SEQUENCE = "sequence"
TOTAL_STEPS = "total_steps"
SETTINGS = frozenset({BATCH, GLOBAL_BATCH, ACCUMULATION, WORLD_SIZE, SEQUENCE, TOTAL_STEPS})

DATA, TRANSFER, FORWARD, LOSS = "data", "transfer", "forward", "loss"
BACKWARD, RECOMPUTATION, SYNC, OPTIMIZER = "backward", "recomputation", "gradient sync", "optimizer"
PHASES = (DATA, TRANSFER, FORWARD, LOSS, BACKWARD, RECOMPUTATION, SYNC, OPTIMIZER)
"""The phases of a step, in order."""

_PHASE = "phase:"


def phase_key(phase: str) -> str:
    return _PHASE + phase


def phase_of_key(quantity: str) -> str | None:
    return quantity.removeprefix(_PHASE) if quantity.startswith(_PHASE) else None


@dataclass(slots=True)
class Sample:
    """What one line says. Not frozen: millions of them are made."""

    values: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    total_steps: int | None = None
    clock_seconds: float | None = None
    """When it was written, from any origin."""
    clock_resolution: float = 1.0
    track: str = ""
    """Lines of one track count the same steps: a progress bar is a track of its own."""
    stage: str = ""
    """A stage under the name its author gave it; its seconds are in `stage_seconds`."""
    stage_seconds: float = 0.0
    stage_depth: int = 0
    throughput_of: str = ""
    """"all" GPUs or "one", where the format says so."""
