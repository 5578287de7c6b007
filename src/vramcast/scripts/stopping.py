"""When a script has shown enough, and what to say where it ended otherwise."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from types import FrameType

import torch
from torch import nn

from vramcast.base.errors import CannotPredict
from vramcast.card.device.context import VirtualGpu
from vramcast.scripts.ending import Enough
from vramcast.scripts.growing import Growing
from vramcast.scripts.longest_batches import LongestBatches
from vramcast.scripts.training_loader import Pass, TrainingLoader

_PATIENCE = 50
"""With several optimizers each should make its steps; one that lags by this factor is no longer waited for."""

_PATIENCE_UNSEEN = 10
"""The same for one that has made no step at all: it may never come to it."""

BACKWARD_PASSES = 20
"""A script without an optimizer of PyTorch's is stopped after this many: each may be a step of its own."""

ACCUMULATED_PASSES = 2_000
"""Where there is an optimizer, this many backward passes may come before its first step: gradients are accumulated."""

FORWARD_PASSES = 50_000
"""This many calls of one module in a row without a backward pass: a rollout of 2,048 moves is shorter, also where each
move calls several layers, and so is an evaluation of a whole data set before the first step."""

INFERENCE_PASSES = 1_000
"""The same where there is no optimizer."""

BATCHES = 50_000
"""This many batches of a DataLoader in a row without a call of a module."""

CAPTURE_PATIENCE = 20
"""Steps that are made before a CUDA graph is captured: a few of warm-up."""

USUAL_STEPS = 3
"""Optimizer state exists from the second step on, and the third shows that the allocator has settled."""

MOST_EVENTS = 10_000_000
"""Events of a whole run: about 2 GB of this computer's memory."""


OWN_STEPS = 2
"""Steps that a script makes with its own batches before it is given the longest: its optimizer has state by then."""

LONGEST_AT_END = 3
"""The least number of steps at the end of such a run that use the longest batch."""


class Until(Enum):
    """What a run is to show, where that is not a number of steps."""

    EPOCH = "epoch"
    """One epoch of the training loader, and what follows it up to the first backward pass of the next."""
    LONGEST = "longest"
    """The longest batches of that epoch."""


class Stopping:
    """Counts steps and passes, and ends the script when there are enough.

    `steps`: so many of each optimizer; None for all that the script makes, or up to what `until` says.
    `capture_is_ahead`: whether the script is going to capture a CUDA graph.
    `before_end`: called in the middle of the script just before it is ended.
    `progress`: told how far it is, after each step.
    """

    def __init__(
        self,
        card: VirtualGpu,
        steps: int | None,
        *,
        until: Until | None = None,
        capture_is_ahead: Callable[[], bool] = lambda: False,
        before_end: Callable[[FrameType], None] = lambda frame: None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._card = card
        self._wanted = steps
        self._until = until
        self._loader = TrainingLoader(self._count_batch, remember_random_state=until is Until.LONGEST)
        self._longest: LongestBatches | None = None
        self.failure: CannotPredict | None = None
        """Why what was asked for cannot be shown."""
        self._capture_is_ahead = capture_is_ahead
        self._before_end = before_end
        self._progress = progress
        self._growing = Growing(card.builder, lambda: card.live_bytes)
        self.fewest = 0
        """Steps of the optimizer that made the fewest."""
        self.rounds: list[int] = []
        """Steps of all optimizers together by the end of each round, in which every one has made another step."""
        self._lagging = False
        self._forward_passes: Counter[int] = Counter()
        """Calls of each module, by its identity; those and the following since the last step or backward pass."""
        self._backward_passes = self._batches = 0
        self.stopped = False
        self.reason = ""
        """Why it was stopped, if not because it had made its steps."""
        card.on_step(self._count_step)
        card.on_pass(self._count_forward, self._count_backward)

    # -- what the script does -------------------------------------------------------------------------------

    def _count_step(self, steps: list[int]) -> None:
        self._forward_passes.clear()
        self._backward_passes = 0
        stepping = [made for made in steps if made]
        before, self.fewest = self.fewest, min(stepping)
        wanted = 1 if self._wanted is None else self._wanted
        self._lagging = self.fewest < wanted
        if self.fewest > before:
            self.rounds.append(self._card.steps_done)
            self._end_of_round()
        if self._wanted is None:
            if self.fewest == USUAL_STEPS and self._until is not Until.LONGEST:
                self._card.note_ops(False)  # one step is enough for its time
            if self._card.builder.n_events > MOST_EVENTS:
                self._stop("steps", f"stopped after {counted(self.fewest)}: the trace has become too long")
            if self._until is not None:
                self._follow_loader()
            return
        patience = _PATIENCE if self._lagging else _PATIENCE_UNSEEN if len(stepping) < len(steps) else 1
        if max(stepping) >= wanted * patience:
            self._stop_unless_more_is_to_see(max(stepping))

    def _count_forward(self, module: nn.Module) -> None:
        if torch.utils.data.get_worker_info() is not None:
            return  # a loader's worker that uses modules to prepare its samples
        self._batches = 0
        self._forward_passes[id(module)] += 1
        calls = self._forward_passes[id(module)]
        if self._wanted is None or calls < INFERENCE_PASSES or not _is_on_a_card(module):
            return
        passes = f"{calls:,} forward passes in a row"
        if not self._card.optimizers:
            self._stop("steps", f"stopped after {passes} without an optimizer step: this is what was seen so far")
        if calls >= FORWARD_PASSES or self._card.builder.n_events > MOST_EVENTS:
            self._stop(
                "steps",
                f"stopped after {passes} without an optimizer step: no training was seen; an evaluation or rollout "
                "that comes before it has to be shorter",
            )

    def _count_backward(self) -> None:
        self._forward_passes.clear()
        self._backward_passes += 1
        if self._until is Until.EPOCH and self._loader.epoch_has_ended:
            self._stop()
        if self._wanted is None or self.fewest:
            return
        if self._card.optimizers:
            if self._backward_passes >= ACCUMULATED_PASSES:
                self._stop(
                    "steps",
                    f"stopped after {ACCUMULATED_PASSES:,} backward passes without an optimizer step: "
                    "optimizer state may be missing",
                )
            return
        self._card.count_step()
        self._end_of_round()
        if self._growing.steps >= max(BACKWARD_PASSES, self._wanted):
            self._stop(
                "steps",
                "no optimizer of PyTorch's makes a step: each backward pass was counted as one, and the script was "
                f"stopped after {self._growing.steps}",
            )

    def _count_batch(self) -> None:
        self._batches += 1
        if self._wanted is not None and self._batches >= BATCHES:
            self._stop("steps", f"stopped after {BATCHES:,} batches of a DataLoader without a forward pass")

    def _follow_loader(self) -> None:
        """Called after each step of a run that follows the loader."""
        self._loader.step_made()
        training = self._loader.training
        if training is None:
            if self.fewest >= USUAL_STEPS:
                name = self._until.value if self._until is not None else ""
                self._give_up(
                    f"--{name}: after {counted(self.fewest)} the script has taken no batch from a DataLoader of "
                    "PyTorch's, so there is no epoch to follow. --steps N or --whole runs it"
                )
        elif self._until is Until.EPOCH:
            if self._loader.epoch_has_ended:
                self._stop()
        elif self._longest is None:
            if self.fewest >= OWN_STEPS:
                self._choose_batches(training)
        elif self._longest.given >= self._longest.planned:
            self._stop("longest batches", self._longest.summary)
        elif self._longest.only_the_longest_is_left:
            self._card.note_ops(True)  # the time of a step is that of the longest

    def _choose_batches(self, training: Pass) -> None:
        self._card.note_ops(False)
        try:
            self._longest = LongestBatches(training, self._progress)
        except CannotPredict as error:
            self._give_up(str(error))
        else:
            self._loader.choose = self._longest.give

    def _give_up(self, why: str) -> None:
        self.failure = CannotPredict(why)
        self._stop()

    def watched(self) -> AbstractContextManager[None]:
        """Active while the script runs."""
        return self._loader.followed()

    @property
    def has_evaluated(self) -> bool:
        """Whether a run that follows the loader also evaluated."""
        return self._until is not None and self._loader.has_evaluated

    @property
    def refused_with(self) -> str:
        """The batch that memory ran out with, where that is known."""
        return "" if self._longest is None else self._longest.at_work

    def _end_of_round(self) -> None:
        self._growing.step_ended()
        self._progress(f"step {self._growing.steps}")

    # -- ending it ------------------------------------------------------------------------------------------

    def _stop_unless_more_is_to_see(self, most: int) -> None:
        if self._lagging:
            waiting = f"an optimizer that made {counted(self.fewest)} while another made {most}"
            self._stop("steps", f"the script was stopped; {waiting} is not waited for any longer")
        if self._growing.is_to_be_watched():
            return
        if self._growing.steps < CAPTURE_PATIENCE and self._capture_is_ahead():
            return
        self._stop()

    def _stop(self, topic: str = "", text: str = "") -> None:
        if self.stopped:  # and the script has caught it
            raise Enough
        if topic:
            self._card.note(topic, text)
        self.reason = text
        if self._until is not Until.LONGEST:
            self._card.growth = self._growing.growth(rising_counts=self._until is None)
        self._before_end(sys._getframe(1))
        self.stopped = True
        raise Enough

    def interrupted(self) -> None:
        """Called when the user interrupts a run to the script's end."""
        self.stopped = True
        self._card.note("steps", f"interrupted after {counted(self.fewest)}: this is what was seen so far")

    @property
    def saw_a_step(self) -> bool:
        """Whether a step was seen, or the run was stopped for another reason, which was told."""
        return bool(self.stopped or self.fewest or self._growing.steps)

    @property
    def saw_a_pass(self) -> bool:
        """Whether a model was called, or a backward pass was made."""
        return bool(self.saw_a_step or self._forward_passes or self._backward_passes)

    def note_what_is_missing(self) -> None:
        """Called after a script that ended by itself."""
        if self.stopped:
            return
        if not self.fewest and not self._growing.steps:
            self._card.note("steps", "the script made no optimizer step: gradients and optimizer state may be missing")
        elif self._until is Until.LONGEST:
            given = "none" if self._longest is None else f"{self._longest.given:,} of {self._longest.planned:,}"
            self._card.note(
                "steps", f"the script ended after {counted(self.fewest)}, with {given} of the batches to run"
            )
        elif self._lagging and self._wanted is not None:
            made = counted(self.fewest)
            self._card.note("steps", f"the script ended after {made}; {self._wanted} were asked for")


def _is_on_a_card(module: nn.Module) -> bool:
    """Whether it has a part there: transforms of pictures and sounds, which prepare samples on the host, are modules,
    too."""
    return any(part.is_cuda for parts in (module.parameters(), module.buffers()) for part in parts)


def counted(steps: int) -> str:
    return f"{steps} optimizer step{'' if steps == 1 else 's'}"
