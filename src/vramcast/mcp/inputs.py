"""What a caller may say, as the tools' schemas describe it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Gpu = Annotated[
    str | None,
    Field(description='The card: "rtx-4090", "A100 80GB", or a size, "24GiB". Left out: the one in this machine, the '
          "job's target, or an RTX 4090."),
]  # fmt: skip
Memory = Annotated[str | None, Field(description='What is there for the job, CUDA context included, e.g. "24GiB".')]
Device = Annotated[
    int | None,
    Field(ge=0, le=9999, description="A card of this machine as CUDA counts them; what is free on it counts."),
]
Detail = Annotated[
    Literal["summary", "full"],
    Field(description="full: also every module, stage and point in time; large."),
]
Limit = Annotated[str | None, Field(description='What PyTorch may reserve at most, e.g. "20GiB".')]
Steps = Annotated[int, Field(ge=1, le=20, description="Optimizer steps to trace.")]
Keep = Annotated[list[str] | None, Field(description="Leave these alone: batch, precision, optimizer, ...")]
Objective = Annotated[
    Literal["throughput", "memory", "closest"],
    Field(description="The fastest, the one that takes least, or the one with the fewest changes first."),
]
CardName = Annotated[str | None, Field(description="One known card, with the source of each figure.")]
Here = Annotated[bool, Field(description="The cards of this machine: used, free, and by which process.")]
Logs = Annotated[
    list[str],
    Field(
        min_length=1,
        description="Files of one run, relative to the root folder: its training log, stage timings, "
        "trainer_state.json, metrics.csv, a torch.profiler trace.",
    ),
]


class SetupInput(BaseModel):
    """How samples make a step, where neither the log nor the job says it."""

    model_config = ConfigDict(extra="forbid")

    batch: int | None = Field(default=None, ge=1, description="Samples at a time on one GPU.")
    gpus: int | None = Field(default=None, ge=1, description="How many train together.")
    accumulation: int | None = Field(default=None, ge=1, description="Batches in a step.")
    sequence: int | None = Field(default=None, ge=1, description="Tokens of a sample, for tokens/s.")
    throughput: Literal["all", "one"] | None = Field(
        default=None, description="Whose samples/s the log gives: of all GPUs (the default) or of one."
    )


class JobInput(BaseModel):
    """A training job: what is trained, and changes to it."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(
        description="A vramcast.yaml, a model folder (config.json is enough), or a training config "
        "(TrainingArguments, accelerate, DeepSpeed, Lightning, KAIR, DiffSR, torchtitan), relative to the root folder."
    )
    model: str | None = Field(None, description="A model folder, for a config that names none.")
    parts: list[str] = Field([], description="Further configs that say a part of the job, e.g. an accelerate config.")
    arguments: list[str] = Field([], description="Flags of a Hugging Face training script, e.g. ['--bf16'].")
    batch: int | None = Field(None, ge=1, description="Samples in one GPU's micro-batch.")
    sequence: int | None = Field(None, ge=1, description="Tokens of a sample.")
    frames: int | None = Field(None, ge=1)
    height: int | None = Field(None, ge=1)
    width: int | None = Field(None, ge=1)
    precision: str | None = Field(None, description="fp32, tf32, bf16, fp16, pure-bf16 or pure-fp16.")
    optimizer: str | None = Field(None, description="adamw, sgd, adamw8bit, ...")
    checkpointing: str | None = Field(None, description="none or all.")
    inference: bool = Field(False, description="Forward passes only.")
    changes: dict[str, Any] = Field(
        {}, description='Any field of the job by its dotted name, e.g. {"components.model.mode": "frozen"}.'
    )

    def overrides(self) -> dict[str, Any]:
        """Dotted keys of the job."""
        sizes = ("batch", "sequence", "frames", "height", "width")
        overrides = {f"sizes.{name}": getattr(self, name) for name in sizes}
        overrides |= {name: getattr(self, name) for name in ("precision", "optimizer", "checkpointing")}
        overrides |= {"task": "inference" if self.inference else None}
        return {key: value for key, value in overrides.items() if value is not None} | self.changes
