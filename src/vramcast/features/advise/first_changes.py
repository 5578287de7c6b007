"""The best few changes that make a job fit, in seconds: what people try first, each traced as it would then be.

`advise` searches all combinations. Here a rough guess from the trace at hand says what is worth a trace, and what is
shown has been traced. The order is that of practice: what trains the same comes first, fastest first; then other
arithmetic for the weights; then adapters, over a half-precision base before a 4-bit one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vramcast.base.errors import VramcastError
from vramcast.features.advise.combination import Combination, about
from vramcast.features.advise.config import card_options, config_text, options_text
from vramcast.features.advise.knobs import options_for
from vramcast.features.advise.language_models import (
    rough_activations,
    rough_parameters,
    single_language_model,
    usual_length,
)
from vramcast.features.advise.option import CHANGES_TRAINING, RISKS, USUAL, Option, go_together
from vramcast.features.advise.result import Change, Suggestion
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory.prediction import Prediction
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import choose_card, predict
from vramcast.trace import StepTrace
from vramcast.trace.schema import ALLOC, FREE, KINDS

_SHOWN = 3
_TRACES = 6
"""Runs that may be traced for it."""
_MANY_EVENTS = 50_000
"""A job on several cards with so many events takes many seconds to trace: one layout that fits is enough."""
_TRIES = 3
"""Runs of one kind that may turn out not to fit; then another kind is tried."""
_HOPELESS = 1.5
"""A guess that is so far above what there is is not worth a trace."""
_CHECKPOINTED, _CHECKPOINTED_BLOCKS, _AUTOCAST, _HALF = 0.25, 0.15, 0.6, 0.5
_NF4, _ADAPTERS = 0.28, 0.02
_MANY_LOGITS = 0.2
"""Logits that take such a share of what there is are worth a loss in pieces, as Liger Kernel has it."""
"""What is left, roughly: of activations with what is lost to fragmentation, of activations alone, with autocast, in
half precision; of weights in fp16; of gradients and optimizer state."""
_ACTIVATIONS = tuple(KINDS.index(kind) for kind in ("saved activations", "temporaries"))
_GRADIENTS = KINDS.index("gradients")
_CHECKPOINTING = "checkpointing"
_SAME, _OTHER_ARITHMETIC, _LORA, _QLORA, _LESS = range(5)
"""In the order in which they are thought of."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Bytes at the peak of the job as it is."""

    weights: float
    gradients: float
    """The most that they take, whenever that is."""
    state: float
    """Of the optimizer, with the temporaries of its step."""
    rest: float
    """Activations, temporaries and what is lost to fragmentation."""
    context: float
    activations: float
    """The most that activations and temporaries take together, whenever that is."""
    logits: float = 0.0
    """The most that tensors as wide as the vocabulary take together."""

    @classmethod
    def of(cls, asked: Prediction, vocabulary: int | None) -> _Parts:
        account, most = asked.account, _most_of_each(asked.trace, vocabulary)
        weights, state, gradients = (account.part(name) for name in ("weights", "optimizer state", "gradients"))
        if account.moment.phase == "optimizer":
            state += account.part("temporaries")  # of its step: they grow with what is trained, not with the batch
        rest = max(0, asked.peak_reserved_bytes - weights - gradients - state)
        # A peak in the forward pass has no gradients yet; they are there whenever the backward pass ends.
        most_gradients = max(gradients, most.gradients)
        return cls(weights, most_gradients, state, rest, asked.context_bytes, most.activations, most.logits)


def first_changes(
    loaded: LoadedJob,
    asked: Prediction,
    runs: Runs,
    card: str,
    step_seconds: float | None,
    keep: Sequence[str] = (),
) -> tuple[Suggestion, ...]:
    """At most three, best first; none where nothing that is tried first fits. `card`: the options that name it."""
    job = loaded.job
    options = options_for(job, asked.gpu, keep)
    parts = _Parts.of(asked, next((one.thinned[0] for one in options.get("loss", []) if one.thinned), None))
    likely, others = _ordered(job, options, parts, asked.limit_bytes)
    waiting = [*likely, *others]
    found: list[tuple[Combination, Traced]] = []
    tight: list[tuple[Combination, Traced]] = []
    """They fit, and leave less than the margin."""
    traced = 0
    refused: set[Option] = set()
    one_is_enough = job.gpus.count > 1 and _is_long(asked)
    missed: Counter[int] = Counter()
    guesses = _Guesses(parts, job)
    while waiting and len(found) < _SHOWN and traced < _TRACES:
        if one_is_enough and any(_kind(one) == _SAME for one, _ in found):
            break
        adapters = {_kind(one) for one, _ in found} & {_LORA, _QLORA}
        unlikely = {one for one in others if _kind(one) in adapters}
        waiting = [
            one
            for one in waiting
            if missed[_kind(one)] < _TRIES and one not in unlikely and guesses.corrected(one) <= asked.limit_bytes
        ]
        waiting = _without_hopeless(waiting, missed, guesses, asked.limit_bytes)
        most = 1 if one_is_enough else min(runs.workers, _SHOWN - len(found))
        fitting = [one for one, _ in found]
        chosen = _next(waiting, fitting, refused, most) or _with_checkpointing(waiting, fitting, refused)
        if not chosen:
            break
        traced += len(chosen)
        wishes = [Wish(with_overrides(job, one.changes), one.text) for one in chosen]
        for one, answer in zip(chosen, runs.trace(wishes), strict=True):
            waiting.remove(one)
            if isinstance(answer, VramcastError):
                refused |= {option for option in one.options if option.traced}
                continue
            guesses.learn(one, answer.prediction.device_bytes)
            if answer.prediction.comfortable:
                found.append((one, answer))
            else:
                missed[_kind(one)] += 1
                tight += [(one, answer)] if answer.prediction.fits else []
    for some in (found, tight):
        some.sort(key=lambda pair: _place(pair[0], pair[1].time.seconds if pair[1].time else None, job))
    if found:  # what leaves less than the margin is shown where nothing else of its kind fits
        kinds = {_kind(one) for one, _ in found}
        tight = [
            next(group) for kind, group in itertools.groupby(tight, lambda pair: _kind(pair[0])) if kind not in kinds
        ]
    found = [*found, *tight][:_SHOWN]
    return tuple(_suggestion(loaded, one, answer, card, step_seconds) for one, answer in found)


@dataclass
class _Guesses:
    """What runs will take, judged by those like them that were traced."""

    parts: _Parts
    job: Job
    traced: list[tuple[Combination, float]] = field(default_factory=list)
    """With the bytes that each takes beyond its guess."""

    def learn(self, one: Combination, device_bytes: int) -> None:
        self.traced.append((one, device_bytes - _guess(one, self.parts, self.job)))

    def corrected(self, one: Combination) -> float:
        """0 where nothing like it was traced: any other batch, or other weights under the adapters."""
        guess = _guess(one, self.parts, self.job)
        for other, beyond in reversed(self.traced):
            if _texts(one, "batch") == _texts(other, "batch"):
                return guess * (1 + beyond / _guess(other, self.parts, self.job))
        for other, beyond in reversed(self.traced):
            if _texts(one, "trained") == _texts(other, "trained") and _trains_adapters(one) and _trains_adapters(other):
                return guess + beyond
        return 0.0

    def like_others(self, one: Combination) -> float:
        """As far beyond its guess as the worst of its kind was."""
        worst = max(
            (
                beyond / _guess(other, self.parts, self.job)
                for other, beyond in self.traced
                if _kind(other) == _kind(one)
            ),
            default=0.0,
        )
        return _guess(one, self.parts, self.job) * (1 + worst)


def _without_hopeless(
    waiting: Sequence[Combination], missed: Mapping[int, int], guesses: _Guesses, limit_bytes: int
) -> list[Combination]:
    """Of a kind that has one try left, the best one that fits if it is guessed as wrong as those before it, or else the
    smallest. A kind is given up only after that."""
    last: dict[int, Combination] = {}
    for kind in {_kind(one) for one in waiting if missed[_kind(one)] == _TRIES - 1}:
        of_kind = [one for one in waiting if _kind(one) == kind]
        smallest = min(of_kind, key=guesses.like_others)
        last[kind] = next((one for one in of_kind if guesses.like_others(one) <= limit_bytes), smallest)
    return [one for one in waiting if last.get(_kind(one), one) is one]


def _texts(one: Combination, but: str) -> frozenset[str]:
    return one.without(but).texts


def _trains_adapters(one: Combination) -> bool:
    return any(option.knob == "trained" for option in one.options)


def _trains_less(one: Combination) -> bool:
    """Adapters on smaller samples: for when nothing else is left."""
    return _kind(one) == _LESS and _trains_adapters(one)


def _is_long(asked: Prediction) -> bool:
    """Whether a trace takes many seconds."""
    return asked.trace is not None and asked.trace.n_events > _MANY_EVENTS


def expected_changes(job: Job, card: GpuSpec, most: int) -> list[Wish]:
    """What `first_changes` will probably try first, where weights and gradients of a language model alone take more
    than the card has, so that no trace is needed to know that it does not fit."""
    part = single_language_model(job)
    if part is None or part.freeze or part.train_only or part.quantization != "none" or job.offload.changed_fields:
        return []
    if job.gpus.effective_strategy not in ("none", "ddp"):
        return []
    residual_bytes = 4 if job.precision.weights_dtype == "fp32" else 2
    product_bytes = 2 if job.precision.autocast_dtype != "none" else residual_bytes
    tokens = job.effective_sizes["batch"] * job.effective_sizes.get("sequence", usual_length(part))
    activations = tokens * rough_activations(part, product_bytes, residual_bytes)
    weights = rough_parameters(part) * (4 if (part.dtype or job.precision.weights_dtype) == "fp32" else 2)
    if 2 * weights <= card.total_memory_bytes:
        return []
    parts = _Parts(weights, weights, 2 * weights, weights, card.context_bytes, activations)
    likely, others = _ordered(job, options_for(job, card, ()), parts, card.total_memory_bytes)
    if job.gpus.count > 1:
        chosen = _next([*likely, *others], (), set(), 1)
    else:
        chosen = _next([*likely, *others], (), set(), min(most, _SHOWN))
        if len(chosen) < _SHOWN:
            chosen += (_next(likely, chosen, set(), 1) or _with_checkpointing(likely, chosen, set()))[:1]
    return [Wish(with_overrides(job, one.changes), one.text) for one in chosen]


def predict_and_change(
    loaded: LoadedJob,
    gpu: str | GpuSpec | None,
    memory: str | None,
    steps: int,
    allocator_conf: str | None,
    workers: int,
    progress: Callable[[str], None],
) -> tuple[JobPrediction, tuple[Suggestion, ...]]:
    """The prediction, and what makes it fit where it does not."""
    card, _ = choose_card(loaded.job, gpu)
    said = {"target.memory": memory, "allocator_conf": allocator_conf}
    job = with_overrides(loaded.job, {key: value for key, value in said.items() if value is not None})
    wishes = expected_changes(job, card, workers) if workers > 1 else ()
    with Runs(card, steps=steps, workers=workers, progress=progress, like=loaded.job, wishes=wishes) as runs:
        result = predict(loaded, gpu, memory, steps, allocator_conf=allocator_conf, progress=progress)
        if result.fits:
            return result, ()
        changed = dataclasses.replace(loaded, job=job)
        named = card_options(gpu, memory, None, card)
        return result, first_changes(changed, result.prediction, runs, named, result.step_seconds)


def _next(
    waiting: Sequence[Combination], found: Sequence[Combination], refused: set[Option], most: int
) -> list[Combination]:
    """Of a combination that fits, nothing more is needed; and one with other arithmetic is enough."""
    chosen: list[Combination] = []
    for one in waiting:
        others = [*found, *chosen]
        if any(_says_more(one, other) for other in others) or refused & set(one.options):
            continue
        if others and _trains_less(one):
            continue
        if _kind(one) == _OTHER_ARITHMETIC and any(_kind(other) == _OTHER_ARITHMETIC for other in others):
            continue
        chosen.append(one)
        if len(chosen) == most:
            break
    return chosen


def _with_checkpointing(
    waiting: Sequence[Combination], found: Sequence[Combination], refused: set[Option]
) -> list[Combination]:
    """Adapters that fit without checkpointing take much less with it: for a longer text or a larger batch."""
    for one in waiting:
        adapters = _kind(one) in (_LORA, _QLORA) and not refused & set(one.options)
        if adapters and any(_names(one) - _names(other) == {_CHECKPOINTING} for other in found):
            return [one]
    return []


def _names(one: Combination) -> set[str]:
    """What it changes, at whatever batch."""
    return {_CHECKPOINTING if option.knob == _CHECKPOINTING else option.text for option in one.without("batch").options}


def _says_more(one: Combination, other: Combination) -> bool:
    """All that `other` changes, at whatever batch, and perhaps more."""
    mine, others = ({(o.knob, "" if o.knob == "batch" else o.text) for o in each.options} for each in (one, other))
    return others <= mine


def _ordered(
    job: Job, options: Mapping[str, list[Option]], parts: _Parts, limit_bytes: int
) -> tuple[list[Combination], list[Combination]]:
    """What will probably fit, best first; and what may fit."""
    if all(part.mode == "lora" for part in job.components.values() if part.is_trained):
        options = {**options, "optimizer": []}  # adapters have next to no optimizer state
    if parts.logits < _MANY_LOGITS * limit_bytes:
        options = {**options, "loss": []}
    candidates = [
        one
        for one in _combinations(options)
        if _guess(one, parts, job) <= _HOPELESS * limit_bytes and _held(one, parts) <= limit_bytes
    ]
    likely = [one for one in candidates if _guess(one, parts, job) <= limit_bytes]
    others = [one for one in candidates if one not in likely]
    return (
        sorted(likely, key=lambda one: _place(one, None, job)),
        sorted(others, key=lambda one: (_kind(one), _guess(one, parts, job))),
    )


def _combinations(options: Mapping[str, list[Option]]) -> Iterator[Combination]:
    """Of the knobs that people turn first."""
    wanted = {
        "batch": options.get("batch", []),
        "checkpointing": [one for one in options.get("checkpointing", []) if one.guess < 1],
        "precision": options.get("precision", []),
        "loss": options.get("loss", []),
        "optimizer": [one for one in options.get("optimizer", []) if one.text in ("8-bit Adam", "paged 8-bit Adam")],
        "sequence": options.get("sequence", []),
        "resolution": options.get("resolution", []),
        "frames": options.get("frames", []),
        "freezing": [one for one in options.get("freezing", []) if all(key.endswith(".mode") for key in one.changes)],
        "gpus": [one for one in options.get("gpus", []) if one.traced],
        "trained": options.get("trained", []),
    }
    for chosen in itertools.product(*([None, *of_knob] for of_knob in wanted.values())):
        taken = tuple(option for option in chosen if option is not None)
        knobs = {option.knob for option in taken}
        if {"trained", "optimizer"} <= knobs:
            continue  # adapters have next to no optimizer state
        if taken and go_together(taken):
            yield Combination(taken)


def _kind(one: Combination) -> int:
    if any(option.sample_share != 1 or option.knob == "freezing" for option in one.options):
        return _LESS
    trained = next((option for option in one.options if option.knob == "trained"), None)
    if trained is not None and trained.risk > USUAL:
        return _QLORA if any(key.endswith("quantization") for key in trained.changes) else _LORA
    risk = max(option.risk for option in one.options)
    return _SAME if risk <= USUAL else _OTHER_ARITHMETIC if risk <= CHANGES_TRAINING else _LESS


def _place(one: Combination, seconds: float | None, job: Job) -> tuple[float, ...]:
    """By kind, then by the time of the batch that was wanted; of those that hardly differ in time, by how much is
    changed, and by the passes of a step."""
    time = one.time if seconds is None else seconds
    return (_kind(one), about(time), len(one.options), one.accumulation(job), time)


def _held(one: Combination, parts: _Parts) -> float:
    """Weights and gradients, which are there whatever the batch; 0 where a combination trains only a part of them."""
    if any(option.knob in ("trained", "freezing") for option in one.options):
        return 0.0
    halved = any(option.knob == "precision" and option.risk >= CHANGES_TRAINING for option in one.options)
    held = (parts.weights + parts.gradients) / _shards(one)
    return (_HALF if halved else 1.0) * held + parts.context


def _shards(one: Combination) -> int:
    return max(option.shards for option in one.options)


@dataclass(frozen=True, slots=True)
class _Most:
    """The highest level of each, whenever it is reached."""

    gradients: float = 0.0
    activations: float = 0.0
    """Without DDP's buckets and what an optimizer's step takes."""
    logits: float = 0.0
    """Of those as wide as the vocabulary."""


def _most_of_each(trace: StepTrace | None, vocabulary: int | None) -> _Most:
    if trace is None:
        return _Most()
    gradients = [kind == _GRADIENTS for kind in trace.kind]
    activations = [
        kind in _ACTIVATIONS and trace.phases[phase] != "optimizer"
        for kind, phase in zip(trace.kind, trace.phase, strict=True)
    ]
    wide = {number for number, shape in enumerate(trace.shapes) if shape.endswith(f", {vocabulary}]")}
    logits = [is_one and shape in wide for is_one, shape in zip(activations, trace.shape, strict=True)]
    return _Most(*(float(_highest(trace, some)) for some in (gradients, activations, logits)))


def _highest(trace: StepTrace, counts: Sequence[bool]) -> int:
    """The most bytes that the blocks which count take together."""
    level = most = 0
    for code, block in zip(trace.event_kind, trace.event_arg, strict=True):
        if code in (ALLOC, FREE) and counts[block]:
            level += trace.requested_bytes[block] if code == ALLOC else -trace.requested_bytes[block]
            most = max(most, level)
    return most


def _guess(one: Combination, parts: _Parts, job: Job) -> float:
    shards = _shards(one)
    weights, gradients, state = (size / shards for size in (parts.weights, parts.gradients, parts.state))
    # Sharded weights and a frozen half-precision base have no autocast copies, so that activations alone are left.
    alone = shards > 1 or any(option.knob == "trained" for option in one.options)
    rest = parts.activations if alone else parts.rest
    logits = parts.logits if one.thinned else 0.0
    rest = max(0.0, rest - logits)
    if any(option.changes.get("gpus.reshard_after_forward") is False for option in one.options):
        weights += parts.weights * (1.0 if job.precision.autocast_dtype == "none" else _HALF)
    for option in one.options:
        if option.knob == "trained":
            weights *= _HALF if any(key.endswith("dtype") for key in option.changes) else 1.0
            weights *= _NF4 if any(key.endswith("quantization") for key in option.changes) else 1.0
            gradients, state = gradients * _ADAPTERS, state * _ADAPTERS
            rest *= _AUTOCAST if "precision" in option.changes else 1.0
        elif option.knob == "freezing":
            gradients, state = gradients * option.state_ratio, state * option.state_ratio
        elif option.knob == "precision":
            pure = option.risk >= CHANGES_TRAINING
            weights, gradients, state = ((_HALF if pure else 1.0) * size for size in (weights, gradients, state))
            rest *= _HALF if pure else _AUTOCAST
        elif option.knob == "checkpointing":
            rest *= _CHECKPOINTED_BLOCKS if alone else _CHECKPOINTED
        else:
            state *= option.state_ratio
            rest *= option.activations_ratio
    rest += logits * (one.thinned[1] if one.thinned else 0.0)
    rest *= one.batch(job) / job.effective_sizes["batch"]
    return weights + gradients + state + rest + parts.context


def _suggestion(
    loaded: LoadedJob, one: Combination, traced: Traced, card: str, step_seconds: float | None
) -> Suggestion:
    job = with_overrides(loaded.job, one.changes)
    seconds = None if traced.time is None else traced.time.seconds
    factor = one.time if seconds is None or not step_seconds else seconds / step_seconds
    return Suggestion(
        changes=tuple(
            Change(knob=option.knob, text=option.text, cost=option.cost, risk=RISKS[option.risk])
            for option in sorted(one.options, key=lambda option: -option.risk)
        ),
        overrides=one.changes,
        prediction=traced.prediction,
        batch=job.effective_sizes["batch"],
        accumulation=job.accumulation,
        samples_per_step=job.samples_per_step,
        time_factor=factor,
        step_seconds=seconds,
        samples_per_second=None if not seconds else job.samples_per_step / seconds,
        by_rule=tuple(option.text for option in one.by_rule),
        config=config_text(loaded, one.changes, card),
        options=options_text(one.changes),
    )
