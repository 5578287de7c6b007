"""The bottleneck in a sentence, what would help and by how much at most, and what will not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.result import BOUND, UNKNOWN, Irregular, Part, Setup, WhatIf
from vramcast.features.diagnose.logs.split import GPU_IDLE, Split

COMPUTING = (q.FORWARD, q.LOSS, q.BACKWARD, q.RECOMPUTATION, q.OPTIMIZER)
LOADING = (q.DATA, q.TRANSFER)
MATTERS = 0.05
"""What takes less than this share of the step is not worth changing."""
CONTRADICTION = "contradiction"
_CONTRADICTS = 1.2
"""Parts of a step may overlap a little, but not by this much."""
BACKWARD_FACTOR = 2.0
"""The backward pass of a matrix product is two: one for its input, one for its weights."""


@dataclass(frozen=True, slots=True)
class Step:
    """What every sentence and gain is worked out from."""

    seconds: float
    mean_seconds: float
    split: Split
    setup: Setup
    total_steps: int | None
    irregular: tuple[Irregular, ...]

    def share(self, seconds: float) -> str:
        share = seconds / self.seconds
        return f"{share:.0%}" if share >= 0.005 or not seconds else "below 0.5%"

    def changed(self, change: str, saved: float, why: str) -> WhatIf:
        """The step with this much less time, and everything else as it is."""
        seconds = max(self.seconds - saved, 0.0)
        samples = self.setup.samples_per_step
        mean = max(self.mean_seconds - saved, seconds)
        return WhatIf(
            change=change,
            source=BOUND,
            step_seconds=seconds,
            samples_per_second=samples / seconds if samples and seconds else None,
            total_seconds=mean * self.total_steps if self.total_steps else None,
            why=why,
        )


def text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 or not seconds else f"{seconds * 1e3:.2g} ms"


def bottleneck(step: Step) -> tuple[str, str]:
    """Kind, and the sentence."""
    kind = _main_group(step.split)
    if kind == "unknown":
        return kind, _only_step_time(step)
    recorded = sum(part.seconds or 0.0 for part in step.split.parts)
    if recorded > _CONTRADICTS * step.seconds:
        return CONTRADICTION, (
            f"The log contradicts itself: its parts take {text(recorded)}, the step {text(step.seconds)}; check "
            "--batch, --gpus and --throughput, and that all files are of the same run."
        )
    seconds = _groups(step.split)[kind]
    others = _others(step, kind)
    part = f"{text(seconds)} of {text(step.seconds)} ({step.share(seconds)})"
    if kind == "data":
        return kind, f"Data loading is the bottleneck: the step waits {part} for it{others}."
    if kind == "host":
        return kind, f"The host is the bottleneck: the GPU has nothing to do for {part}{others}."
    if kind == q.SYNC:
        return kind, f"Gradient sync is the bottleneck: {part}{others}."
    if step.split.seconds(*COMPUTING) is None:
        # Loading was ruled out; nothing says more.
        return kind, f"Computation, or the host that issues it, is the bottleneck: {part}{others}."
    return kind, f"Computation on the GPU is the bottleneck{_mostly(step)}: {part}{others}."


def _groups(split: Split) -> dict[str, float]:
    groups: dict[str, float] = {}
    for part in split.parts:
        if part.seconds is None:
            continue
        if part.covers and len(part.covers) > 1:
            # Loading could be anything; the rest is computation but for the sync, which is a small part of it.
            kind = "unknown" if q.DATA in part.covers else "computation"
        elif part.name == GPU_IDLE:
            kind = "host"
        elif part.phase in LOADING:
            kind = "data"
        elif part.phase == q.SYNC:
            kind = q.SYNC
        else:
            kind = "computation"
        groups[kind] = groups.get(kind, 0.0) + part.seconds
    return groups


def _main_group(split: Split) -> str:
    groups = _groups(split)
    return max(groups, key=lambda name: groups[name], default="unknown")


def _mostly(step: Step) -> str:
    """Which part of the computation."""
    parts = [part for part in step.split.parts if part.seconds and (part.phase in COMPUTING or part.covers)]
    if not parts:
        return ""
    largest = max(parts, key=lambda part: part.seconds or 0.0)
    if len(largest.covers) > 1:
        if q.BACKWARD not in largest.covers:
            return ""
        forward = step.split.seconds(q.FORWARD)
        sure = forward is not None and BACKWARD_FACTOR * forward > (largest.seconds or 0.0) / 2
        return ", the backward pass most of all" if sure else ""
    name = {q.FORWARD: "the forward pass", q.BACKWARD: "the backward pass", q.OPTIMIZER: "the optimizer"}
    return f", {name.get(largest.phase or '', largest.name)} most of all"


def _others(step: Step, kind: str) -> str:
    loading = step.split.seconds(*LOADING)
    remarks = []
    unrecorded = step.split.unrecorded
    if kind == "computation":
        if unrecorded is not None and unrecorded.seconds:
            remarks.append(
                f"{text(unrecorded.seconds)} ({step.share(unrecorded.seconds)}) of it in what the log did not record, "
                f"{_list(unrecorded.covers)}"
            )
        if loading is not None:
            remarks.append(f"data loading takes {text(loading)} ({step.share(loading)})")
    return "; " + "; ".join(remarks) if remarks else ""


def _only_step_time(step: Step) -> str:
    return (
        f"The bottleneck cannot be named: the log does not say where the step's {text(step.seconds)} go; log the time "
        "spent waiting for data, or give a torch.profiler trace too."
    )


def about_unrecorded(step: Step) -> list[str]:
    """What the time that was not recorded says about itself."""
    unrecorded, forward = step.split.unrecorded, step.split.seconds(q.FORWARD)
    if unrecorded is None or not unrecorded.seconds or not forward or q.BACKWARD not in unrecorded.covers:
        return []
    times = unrecorded.seconds / forward
    remark = (
        f"{_list(unrecorded.covers)} take {times:.1f} times the forward pass; by its arithmetic a backward pass takes "
        f"about {BACKWARD_FACTOR:g} times ({text(BACKWARD_FACTOR * forward)}), and {BACKWARD_FACTOR + 1:g} times "
        f"({text((BACKWARD_FACTOR + 1) * forward)}) when checkpointing computes all of forward again"
    )
    return [remark]


# -- what would help -------------------------------------------------------------------------------------------------


def helps(step: Step) -> list[WhatIf]:
    """The most that each can give, best first."""
    gains = [gain for gain in _candidates(step) if (gain.step_seconds or 0.0) <= (1 - MATTERS) * step.seconds]
    gains += _regular(step)
    gains.sort(key=lambda gain: (gain.total_seconds or 0.0, gain.step_seconds or 0.0))
    return [*gains, *_larger_batch(step)]


def _larger_batch(step: Step) -> Iterator[WhatIf]:
    """The one change whose gain no log can bound."""
    batch = step.setup.batch
    if batch is not None and _main_group(step.split) in ("computation", "host"):
        yield WhatIf(
            change=f"a larger batch than {batch:,}, where memory allows", source=UNKNOWN,
            why="samples/s rise for as long as the GPU is not full; a log does not say how far it is",
        )  # fmt: skip


def _candidates(step: Step) -> Iterator[WhatIf]:
    split = step.split
    loading = split.seconds(*LOADING)
    if loading:
        yield step.changed(
            "data loading hidden: more workers, prefetching, cheaper decoding, a cache", loading,
            "the step waits for data; all of that wait gone",
        )  # fmt: skip
    yield from _no_recomputation(step)
    computing = _groups(split).get("computation", 0.0)
    if computing:
        yield step.changed(
            "computation twice as fast: half precision, torch.compile, a faster card", computing / 2,
            "forward, backward and optimizer in half the time; what was not recorded counted with them",
        )  # fmt: skip
    yield from _slowest_stage(step)
    sync = split.seconds(q.SYNC)
    if sync:
        yield step.changed(
            "gradient sync hidden: accumulation with no_sync, larger buckets, a faster link", sync, "all of it gone"
        )
    optimizer = split.seconds(q.OPTIMIZER)
    if optimizer:
        yield step.changed("optimizer at no cost: fused=True, fewer steps by accumulation", optimizer, "all of it gone")
    idle = next((part.seconds for part in split.parts if part.name == GPU_IDLE), None)
    if idle:
        yield step.changed(
            "GPU never idle: torch.compile or CUDA graphs, no .item() in the loop, larger batch",
            idle,
            "all idle time gone",
        )


def _no_recomputation(step: Step) -> Iterator[WhatIf]:
    """What is computed again is at most the forward pass."""
    if step.setup.checkpointing is False:
        return
    recomputation, forward = step.split.seconds(q.RECOMPUTATION), step.split.seconds(q.FORWARD)
    unrecorded = step.split.unrecorded
    if recomputation:
        yield step.changed("gradient checkpointing off", recomputation, "nothing is computed again; needs memory")
    elif forward and unrecorded is not None and q.BACKWARD in unrecorded.covers and unrecorded.seconds:
        # Without recomputation backward would still take its own time.
        saved = min(forward, max(0.0, unrecorded.seconds - forward))
        doubt = "" if step.setup.checkpointing else ", if it is on"
        why = "at most one forward pass is computed again; needs memory: vramcast advise"
        yield step.changed(f"gradient checkpointing off{doubt}", saved, why)


def _slowest_stage(step: Step) -> Iterator[WhatIf]:
    """The largest stage of forward, with as large a share of backward."""
    forward = next((part for part in step.split.parts if part.phase == q.FORWARD and part.children), None)
    if forward is None or not forward.seconds:
        return
    stage = _largest_leaf(forward)
    if not stage.seconds or stage is forward:
        return
    share = stage.seconds / forward.seconds
    backward = step.split.seconds(q.BACKWARD, q.RECOMPUTATION)
    unrecorded = step.split.unrecorded
    if backward is None and unrecorded is not None and q.BACKWARD in unrecorded.covers:
        backward = unrecorded.seconds
    yield step.changed(
        f'"{stage.name}" twice as fast', share * (forward.seconds + (backward or 0.0)) / 2,
        f"{share:.0%} of forward, and as much of backward",
    )  # fmt: skip


def _largest_leaf(part: Part) -> Part:
    named = [child for child in part.children if child.name != "other"]
    if not named:
        return part
    return _largest_leaf(max(named, key=lambda child: child.seconds or 0.0))


def _regular(step: Step) -> Iterator[WhatIf]:
    """The run without the steps that take longer."""
    for irregular in step.irregular:
        if irregular.share < MATTERS or not step.total_steps:
            continue
        change = {
            "periodic": "no slow steps: save and evaluate less often, or asynchronously",
            "stalls": "no stalls: faster storage, no other work on the machine",
            "drift": "as fast as at the beginning: look for lists that grow, leaks, heat",
            "evaluation": "no evaluation while training",
        }[irregular.kind]
        mean = step.mean_seconds * (1 - irregular.share)
        samples = step.setup.samples_per_step
        yield WhatIf(
            change=change,
            source=BOUND,
            step_seconds=mean,
            samples_per_second=samples / mean if samples and mean else None,
            total_seconds=mean * step.total_steps,
            why=irregular.text,
        )


# -- and what will not -----------------------------------------------------------------------------------------------


def will_not_help(step: Step) -> list[WhatIf]:
    split = step.split
    small = (
        (LOADING, "more loader workers, a larger cache, another data format", "loading takes"),
        ((q.OPTIMIZER,), "a faster optimizer (8-bit Adam saves memory, not time)", "the optimizer takes"),
        ((q.SYNC,), "a faster link between the GPUs", "gradient sync takes"),
        ((q.LOSS,), "a cheaper loss", "the loss takes"),
    )
    useless = []
    for phases, change, what in small:
        seconds = split.seconds(*phases)
        if seconds is not None and seconds < MATTERS * step.seconds:
            why = f"{what} {text(seconds)} of {text(step.seconds)}: {100 * seconds / step.seconds:.2g} % at most"
            useless.append(step.changed(change, seconds, why))
    loading = split.seconds(*LOADING)
    if loading is not None and loading > step.seconds / 2:
        why = f"the step waits {step.share(loading)} of its time for data, which no change to the model makes shorter"
        useless.append(step.changed("a faster card, half precision, torch.compile", step.seconds - loading, why))
    return useless


def _list(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
