"""What somebody has chosen on the page: a job, a card and settings. The page's address holds it too."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(max_length=300)]
Size = Annotated[int, Field(ge=1, le=10_000_000)]
SIZES = ("batch", "sequence", "height", "width", "frames")


class PageState(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Name
    """folder:PATH below the root, example:NAME, or upload:NUMBER."""
    gpu: Name = "rtx-4090"
    limit: Annotated[str, StringConstraints(max_length=40)] = ""
    """What PyTorch may reserve; empty: what the card has."""
    allocator: Literal["", "expandable_segments:True"] = ""
    batch: Size | None = None
    sequence: Size | None = None
    height: Size | None = None
    width: Size | None = None
    frames: Size | None = None
    precision: Literal["", "fp32", "tf32", "bf16", "fp16", "pure-bf16", "pure-fp16"] = ""
    optimizer: Annotated[str, StringConstraints(max_length=40, pattern=r"^[\w-]*$")] = ""
    checkpointing: Literal["", "none", "all"] = ""
    mode: Literal["", "trained", "lora"] = ""
    """How the main component is trained."""
    task: Literal["", "training", "inference"] = ""
    accumulation: Size | None = None
    gpus: Annotated[int, Field(ge=1, le=4096)] | None = None
    strategy: Literal["", "ddp", "fsdp", "hsdp"] = ""
    tensor: Annotated[int, Field(ge=1, le=64)] | None = None
    pipeline: Annotated[int, Field(ge=1, le=64)] | None = None
    compile: Literal["", "on", "off"] = ""
    freeze: Annotated[str, StringConstraints(max_length=300, pattern=r"^[\w.,*?\[\]! -]*$")] = ""
    """Patterns of parameters that are not trained, with commas between."""

    def overrides(self, main: str) -> dict[str, Any]:
        """Dotted keys of the job; empty settings stay as the job has them. `main`: its main component."""
        changes: dict[str, Any] = {f"sizes.{name}": getattr(self, name) for name in SIZES}
        changes |= {name: getattr(self, name) or None for name in ("precision", "optimizer", "checkpointing", "task")}
        changes["accumulation"] = self.accumulation
        changes["gpus.count"] = self.gpus
        changes["gpus.strategy"] = self.strategy or None
        changes["gpus.tensor"] = self.tensor
        changes["gpus.pipeline"] = self.pipeline
        changes["torch_compile"] = {"on": True, "off": False}.get(self.compile)
        if main:
            patterns = [word.strip() for word in self.freeze.split(",") if word.strip()]
            changes[f"components.{main}.freeze"] = patterns or None
            changes[f"components.{main}.mode"] = self.mode or None
        changes["allocator_conf"] = self.allocator or None
        return {key: value for key, value in changes.items() if value is not None}
