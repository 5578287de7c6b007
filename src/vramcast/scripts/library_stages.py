"""What a Trainer of transformers or of Lightning was told to do now and then beside training steps."""

from __future__ import annotations

from types import FrameType
from typing import Any


def stages_ahead(frame: FrameType | None) -> list[str]:
    """Stages that the running trainers still have ahead, from their settings."""
    stages: dict[str, None] = {}
    while frame is not None:
        trainer = frame.f_locals.get("self") if frame.f_code.co_name != "<module>" else None
        for kind in type(trainer).__mro__ if trainer is not None else ():
            describe = _DESCRIBED.get((kind.__module__.partition(".")[0], kind.__name__))
            if describe is not None:
                stages.update(dict.fromkeys(describe(trainer)))
        frame = frame.f_back
    return list(stages)


def _transformers(trainer: Any) -> list[str]:
    args = trainer.args
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    if strategy == "no" or getattr(trainer, "eval_dataset", None) is None:
        return []
    every = f"every {args.eval_steps:g} steps" if strategy == "steps" else f"every {strategy}"
    return [f"evaluation by the Trainer ({every}, batch {args.eval_batch_size})"]


def _lightning(trainer: Any) -> list[str]:
    if getattr(trainer, "num_sanity_val_steps", 0) or not getattr(trainer, "enable_validation", False):
        return []  # the sanity check before training runs the same
    return ["validation by the Trainer"]


_DESCRIBED = {
    ("transformers", "Trainer"): _transformers,
    ("lightning", "Trainer"): _lightning,
    ("pytorch_lightning", "Trainer"): _lightning,
}
