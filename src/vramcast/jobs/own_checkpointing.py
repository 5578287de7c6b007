"""Networks that take their checkpointing as arguments, as KAIR's do: two switches, and blocks that are exempted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from vramcast.jobs.schema import Checkpointing, Job

SWITCHES = {"use_checkpoint_attn": "attention", "use_checkpoint_ffn": "feed_forward"}
EXEMPTED = {
    "no_checkpoint_attn_blocks": "skip_attention_blocks",
    "no_checkpoint_ffn_blocks": "skip_feed_forward_blocks",
}
ARGUMENTS = SWITCHES | EXEMPTED
"""Argument of the network → field of `Checkpointing`."""


def switch_arguments(wish: Checkpointing) -> dict[str, Any]:
    """What such a network is called with. `all` and `none` alone are both switches on or off, and nothing exempted."""
    if wish.scope == "modules":
        return {}
    if wish.attention is None and wish.feed_forward is None:
        return {**dict.fromkeys(SWITCHES, wish.scope == "all"), **{name: [] for name in EXEMPTED}}
    said = {name: getattr(wish, field) for name, field in ARGUMENTS.items()}
    return {name: value for name, value in said.items() if value is not None}


def from_switches(said: dict[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """The `checkpointing` of a job from such arguments. `taken`: those of them that the network has."""
    switches = [bool(said.get(name)) for name in SWITCHES if name in taken]
    if not any(switches):
        return {"scope": "none"}
    if all(switches) and not any(said.get(name) for name in EXEMPTED):
        return {"scope": "all"}
    return {"scope": "none", **{field: said[name] for name, field in ARGUMENTS.items() if name in said}}


def checkpointed_now(job: Job) -> Literal["none", "some", "all"]:
    """How much a job checkpoints, by its own section or by arguments of its networks."""
    wish = job.checkpointing
    if wish.scope != "none":
        return "all" if wish.scope == "all" else "some"
    if "checkpointing" in job.model_fields_set:
        return "some" if wish.attention or wish.feed_forward else "none"
    switched = any(part.arguments.get(name) for part in job.components.values() for name in SWITCHES)
    return "some" if switched else "none"
