"""From a trace to the verdict: does it fit the card, with how much to spare, and what takes the memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from vramcast.allocator.stream_uses import USED_ELSEWHERE
from vramcast.allocator.trials import Trial, trials_in
from vramcast.base.errors import CannotPredict, UsageError
from vramcast.base.shown import Shown
from vramcast.base.units import MIB, format_gib, format_size
from vramcast.gpus import GpuSpec
from vramcast.memory.account import Account, account
from vramcast.memory.attempts import note_of, of_training
from vramcast.memory.curve import StepLevels, curve
from vramcast.memory.growth import Outlook, outlook
from vramcast.memory.lengthening import lengthened
from vramcast.memory.margin import Margin, has_many_convolutions, margin_for
from vramcast.memory.replay import Refusal, Replay, replay
from vramcast.memory.several_cards import CardUse, traces_of_cards
from vramcast.timing import StepTime, step_time
from vramcast.trace import HostUse, Note, StepTrace
from vramcast.trace.kept import Return
from vramcast.trace.schema import KEPT


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Shown):
    """What a run would take on one card. When it does not fit, the figures are what it would need."""

    gpu: GpuSpec
    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    """What nvidia-smi would show at the peak: reserved, context and loaded kernels."""
    limit_bytes: int
    """What the card (or the limit asked for) offers, context and kernels included."""
    at_least: bool
    """The run ended when it was refused memory, so it may need still more than the figures say."""
    out_of_memory: Refusal | None
    """Where the card first refuses an allocation and the run does not go on."""
    retries: int
    """How often the allocator would give cached memory back and try again; each costs time."""
    steps: int
    """Optimizer steps that were traced."""
    account: Account
    margin: Margin
    """How far recorded runs like this one were from their predictions."""
    touched_bytes: int = 0
    """What nvidia-smi would show at the highest where libraries find room to try out more than the run needs
    (cudnn.benchmark), or the program tries more than the card has; at least `device_bytes`."""
    reserved_range: tuple[int, int] = (0, 0)
    """What PyTorch's allocator would hold at the least and at the most, where chance or predicted times decide when
    memory comes back (trace/kept.py); else twice `peak_reserved_bytes`."""
    replayed_steps: int = 0
    """Steps that the figures are of: the last traced ones repeated, where they are alike."""
    notes: tuple[Note, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    allocator_conf: str = ""
    source: str = ""
    host: HostUse | None = None
    """The computer's memory, where the run keeps a part of itself there."""
    curve: tuple[StepLevels, ...] = ()
    """After each traced step."""
    cards: tuple[CardUse, ...] = ()
    """Where the process uses several cards: what it takes on each. All other figures are of `card`."""
    card: int = 0
    """Of several cards: the one that runs out first, else the one that holds the most."""
    outlook: Outlook | None = None
    """Where every step leaves more behind: how long memory lasts."""
    time: StepTime | None = field(default=None, repr=False, compare=False)
    """How long a step takes; None where it was not asked for (`with_time`), where the trace does not say which ops it
    ran, or where the run ended early."""
    trace: StepTrace | None = field(default=None, repr=False, compare=False)

    @property
    def headroom_bytes(self) -> int:
        """What is left at the peak; below zero, what is missing."""
        return self.limit_bytes - self.device_bytes

    @property
    def interval(self) -> tuple[int, int]:
        """Where 95 of 100 recorded runs like this one would lie, on the device."""
        least, most = self.reserved_range
        return self.margin.interval(least + self.context_bytes)[0], self.margin.upper(most + self.context_bytes)

    @property
    def reserved_interval(self) -> tuple[int, int]:
        """The same of what PyTorch's allocator holds."""
        least, most = self.reserved_range
        return self.margin.interval(least)[0], self.margin.upper(most)

    @property
    def with_margin_bytes(self) -> int:
        """What to keep free for it on the device."""
        return self.interval[1]

    @property
    def comfortable(self) -> bool:
        """It fits with the margin."""
        return self.fits and self.with_margin_bytes <= self.limit_bytes

    @property
    def barely_fits(self) -> bool:
        """It fits, and less is left than the margin."""
        return self.fits and not self.comfortable

    @property
    def host_bytes(self) -> int:
        """What tensors take of the computer's memory at their highest, from the first forward pass on."""
        return 0 if self.host is None else self.host.peak_bytes

    @property
    def step_seconds(self) -> float | None:
        return None if self.time is None else self.time.seconds

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds of a step by phase; empty where they are not known."""
        return {} if self.time is None else self.time.phases

    @property
    def context_bytes(self) -> int:
        return self.device_bytes - self.peak_reserved_bytes


def predict(
    trace: StepTrace,
    *,
    gpu: GpuSpec | None = None,
    capacity_bytes: int | None = None,
    allocator_conf: str | None = None,
) -> Prediction:
    """The verdict for the card the trace was made for, or another one.

    `capacity_bytes` is what PyTorch may reserve at most; by default what the card has left beside context and
    kernels. "Fits" means that a replay under that limit is never refused for good: the allocator may give cached
    memory back and try again, so this is not the same as a peak below the limit. A run whose every step leaves more
    behind does not fit unless memory lasts for MANY_STEPS.
    """
    return predict_and_replay(trace, gpu=gpu, capacity_bytes=capacity_bytes, allocator_conf=allocator_conf)[0]


def predict_and_replay(
    trace: StepTrace,
    *,
    gpu: GpuSpec | None = None,
    capacity_bytes: int | None = None,
    allocator_conf: str | None = None,
    timeline_points: int = 200,
) -> tuple[Prediction, Replay]:
    """`predict`, and the replay that its account is of, for whoever draws it.

    `timeline_points`: of the account; 0 where nobody asks for the course of the whole run.
    """
    if trace.cards:
        return _predict_cards(trace, gpu, capacity_bytes, allocator_conf)
    if not trace.n_blocks:
        raise CannotPredict("the run allocated nothing on the GPU: does it ever move anything to cuda?")
    traced_for = GpuSpec.from_dict(trace.gpu)
    notes = list(trace.notes)
    if gpu is None or gpu.id == traced_for.id:
        gpu = traced_for
        context_bytes = trace.context_bytes
        capacity = trace.capacity_bytes if capacity_bytes is None else capacity_bytes
    else:
        context_bytes = context_on(trace, gpu)
        capacity = gpu.total_memory_bytes - context_bytes if capacity_bytes is None else capacity_bytes
        text = f"traced for {traced_for.short_name}; {gpu.short_name} may choose other kernels and workspaces"
        notes.append(Note("another card", text))
    if capacity <= 0:
        raise UsageError(f"{gpu.short_name}: the limit leaves nothing for PyTorch")

    run = lengthened(trace)
    limited = replay(run, allocator_conf, capacity)
    fits = limited.completed
    whole = limited if fits else replay(run, allocator_conf, None)
    shown = of_training(whole) if fits else whole
    device_bytes = shown.peak_reserved.reserved_bytes + context_bytes
    touched_bytes = whole.peak_reserved.reserved_bytes + context_bytes
    if shown is not whole:
        notes.append(note_of(whole))
    trials = trials_in(trace.labels)
    if trials:
        tried = replay(run, allocator_conf, capacity, with_trials=True)
        touched_bytes = max(touched_bytes, tried.peak_reserved.reserved_bytes + context_bytes)
        notes.append(Note("cudnn.benchmark", _benchmark_text(device_bytes, touched_bytes, trials.values())))
    reserved_range = _reserved_range(trace, shown)
    if reserved_range[0] < reserved_range[1]:
        notes.append(_note_of_range(trace, reserved_range))
    grows = outlook(trace, allocator_conf, capacity, shown.peak_reserved.reserved_bytes)
    if grows is not None:
        notes.append(grows.note())
    prediction = Prediction(
        gpu=gpu,
        fits=fits and (grows is None or grows.fits),
        peak_allocated_bytes=shown.peak_allocated.allocated_bytes,
        peak_reserved_bytes=shown.peak_reserved.reserved_bytes,
        device_bytes=device_bytes,
        touched_bytes=touched_bytes,
        reserved_range=reserved_range,
        limit_bytes=capacity + context_bytes,
        at_least=not fits and trace.ends_refused,
        out_of_memory=_fatal(limited),
        retries=limited.retries,
        steps=trace.steps,
        account=account(shown, context_bytes=context_bytes, timeline_points=timeline_points),
        margin=margin_for(gpu.id, notes, many_convolutions=has_many_convolutions(trace)),
        replayed_steps=run.steps,
        curve=curve(shown, trace.steps),
        notes=tuple(notes),
        versions={"torch": trace.torch_version, **trace.versions},
        allocator_conf=shown.conf,
        source=trace.source,
        host=trace.host,
        outlook=grows,
        trace=trace,
    )
    return prediction, shown


def _reserved_range(trace: StepTrace, shown: Replay) -> tuple[int, int]:
    """Of the likely replay, and of those in which memory comes back as early and as late as it can."""
    highest = [shown.peak_reserved.reserved_bytes]
    if KEPT in trace.event_kind or USED_ELSEWHERE in trace.labels:
        for when in (Return.EARLIEST, Return.LATEST):
            run = replay(lengthened(trace, when=when), shown.conf, shown.capacity_bytes, when=when)
            if not run.completed:
                run = replay(lengthened(trace, when=when), shown.conf, None, when=when)
            highest.append(of_training(run).peak_reserved.reserved_bytes)
    return min(highest), max(highest)


def _note_of_range(trace: StepTrace, reserved_range: tuple[int, int]) -> Note:
    least, most = map(format_gib, reserved_range)
    if KEPT not in trace.event_kind:
        return Note(
            "streams",
            "it can come back as soon as it is freed, or only when the host waits: "
            f"reserved memory is {least} to {most}",
        )
    return Note(
        "DDP",
        "NCCL lets go of the first step's buckets when its watchdog, which looks every 100 ms, has seen their sums and "
        "another collective begins. Whether it has seen them when other buckets replace these is chance: reserved "
        f"memory is {least} to {most}, and the figure is of the likelier course",
    )


def _predict_cards(
    trace: StepTrace, gpu: GpuSpec | None, capacity_bytes: int | None, allocator_conf: str | None
) -> tuple[Prediction, Replay]:
    """The card that decides, with what each of the others takes."""
    found = [
        (own, *predict_and_replay(own.trace, gpu=gpu, capacity_bytes=capacity_bytes, allocator_conf=allocator_conf))
        for own in traces_of_cards(trace)
    ]
    refused = [
        (own.events[prediction.out_of_memory.at.event], own, prediction, replayed)
        for own, prediction, replayed in found
        if prediction.out_of_memory is not None and prediction.out_of_memory.at.event < len(own.events)
    ]
    if refused:
        _, first, decides, replayed = min(refused, key=lambda item: item[0])
    else:
        first, decides, replayed = max(found, key=lambda item: (not item[1].fits, item[1].device_bytes))
    cards = tuple(
        CardUse(
            card=own.card,
            fits=prediction.fits,
            peak_allocated_bytes=prediction.peak_allocated_bytes,
            peak_reserved_bytes=prediction.peak_reserved_bytes,
            device_bytes=prediction.device_bytes,
            limit_bytes=prediction.limit_bytes,
        )
        for own, prediction, _ in sorted(found, key=lambda item: item[0].card)
    )
    notes = (Note("cards", _in_words(cards, first.card)), *decides.notes)
    return replace(decides, card=first.card, cards=cards, notes=notes), replayed


def _in_words(cards: Collection[CardUse], chosen: int) -> str:
    each = ", ".join(
        f"cuda:{use.card} {format_gib(use.device_bytes)}{'' if use.fits else ' (does not fit)'}" for use in cards
    )
    return f"one process uses {len(cards)} cards: {each}; the figures are of cuda:{chosen}"


def with_time(prediction: Prediction) -> Prediction:
    """The same with the time of a step. Not part of `predict`: most callers need the memory alone."""
    return (
        prediction
        if prediction.trace is None
        else replace(prediction, time=step_time(prediction.trace, prediction.gpu))
    )


def _benchmark_text(needed_bytes: int, touched_bytes: int, trials: Collection[Trial]) -> str:
    more_bytes = max(trial.most_bytes - trial.assumed_bytes for trial in trials)
    less_bytes = max(trial.assumed_bytes - trial.least_bytes for trial in trials)
    fastest = "which plan is fastest is only known on the card: the first that suits the shape is assumed"
    differs = [
        f"{format_size(size)} {how}" for size, how in ((more_bytes, "more"), (less_bytes, "less")) if size >= MIB
    ]
    if differs:
        fastest += f", and another that cuDNN times may keep up to {' or '.join(differs)}"
    if touched_bytes <= needed_bytes:
        return f"cuDNN tries its plans for each new shape; {fastest}"
    return (
        f"while cuDNN tries its plans, {format_gib(touched_bytes)} is taken where the card has room; the run needs "
        f"{format_gib(needed_bytes)}. {fastest[0].upper()}{fastest[1:]}"
    )


def context_on(trace: StepTrace, gpu: GpuSpec) -> int:
    """CUDA context of `gpu`, and the kernels that the trace has loaded."""
    traced_for = GpuSpec.from_dict(trace.gpu)
    return max(0, trace.context_bytes - traced_for.context_bytes) + gpu.context_bytes


def _fatal(run: Replay) -> Refusal | None:
    return next((refusal for refusal in run.refusals if not refusal.survived), None)
