"""`virtual_gpu(...)`: "cuda" without a GPU, for as long as the `with` block lasts."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from vramcast.allocator import CachingAllocator, OutOfMemory
from vramcast.allocator.card_streams import place_of
from vramcast.base.assumptions import Assumption
from vramcast.base.errors import UsageError
from vramcast.base.factories import full_collections_rarely
from vramcast.base.torch_versions import PYTORCH_ALLOC_CONF, in_words, what_is_assumed
from vramcast.card.compiled.quick_imports import quick_imports
from vramcast.card.device import gradient_accumulation as accumulation
from vramcast.card.device.allocator_settings import AllocatorSettings
from vramcast.card.device.device_memory import context_bytes
from vramcast.card.device.installed_torch import INSTALLED, cudnn_version
from vramcast.card.device.machine import FailedOp, Machine
from vramcast.card.device.one_card import CARD
from vramcast.card.device.replacements import Replacements
from vramcast.card.dispatch.cached_tensors import forget_cached_tensors
from vramcast.card.dispatch.ledger import Ledger
from vramcast.card.dispatch.position import Position
from vramcast.card.dispatch.unknown import UnknownKernel
from vramcast.card.distributed.world import world_in_environment
from vramcast.card.values import known_values
from vramcast.card.values.given_values import GivenValues
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.trace import COMPUTED_VALUES, CardLimits, Growth, Note, StepTrace, TraceBuilder
from vramcast.trace.calls import ITERATION, ITERATION_END

if TYPE_CHECKING:
    from vramcast.memory import Prediction

_active: VirtualGpu | None = None


class VirtualGpu:
    """A card that computes nothing and remembers everything. Use it as a context manager, once."""

    def __init__(
        self,
        gpu: GpuSpec,
        allocator_conf: str | None = None,
        limit_bytes: int | None = None,
        source: str = "",
        packages: Sequence[str] = (),
        cards: int | None = None,
    ) -> None:
        self.gpu = gpu
        self._seen_cards = cards
        self._settings = AllocatorSettings(allocator_conf)
        self.source = source
        self._limit_bytes = limit_bytes
        self._ledger = Ledger(self._new_allocator)
        self._position = Position(self._ledger)
        self._machine = Machine(gpu, self._ledger, self._position)
        self._replacements = Replacements(
            gpu, self._ledger, self._position, self._machine, packages, self._taken_beside_allocator
        )
        self._exits = ExitStack()
        self._computes_values = False
        self._trace: StepTrace | None = None
        self.growth: Growth | None = None
        """Set by whoever runs the steps and sees that each leaves more memory behind."""
        self._adopted: StepTrace | None = None
        self._fork = (0, 0)
        self._ledger.describe_out_of_memory = self._describe_out_of_memory
        self._machine.initialize = self._ledger.on_first_use = self._initialize
        self._machine.change_allocator_settings = self._change_settings
        self._machine.on_load_library = self._set_capacity
        self._set_capacity()
        self._note_version(from_environment=allocator_conf is None)

    def _note_version(self, *, from_environment: bool) -> None:
        """What the version of torch means for this prediction, where it is not what a user expects."""
        assumed = what_is_assumed(torch.__version__)
        if assumed is not None:
            self._machine.note("torch", assumed)
        for reason in self._settings.conf.refused_by(INSTALLED):
            self._machine.note("allocator", f"{reason}: it would stop at the first allocation")
        if from_environment and "PYTORCH_ALLOC_CONF" in os.environ and INSTALLED < PYTORCH_ALLOC_CONF:
            self._machine.note(
                "allocator", f"torch {in_words(INSTALLED)} reads PYTORCH_CUDA_ALLOC_CONF, not PYTORCH_ALLOC_CONF"
            )

    def _new_allocator(self) -> CachingAllocator:
        """Each card has its own."""
        allocator = CachingAllocator(
            conf=self._settings.conf,
            device_total_bytes=self.gpu.total_memory_bytes,
            torch_version=torch.__version__,
        )
        self._set_fraction(allocator)
        allocator.set_capacity(self._limit_bytes or self.gpu.total_memory_bytes - context_bytes(self.gpu, ()))
        return allocator

    @property
    def capacity_bytes(self) -> int:
        """What the allocator of the card in use may take."""
        return self._capacity_bytes(self._ledger.place)

    def _capacity_bytes(self, place: int) -> int:
        """What an allocator may take: the limit asked for, or the card less context and kernels loaded so far."""
        allowed = self._ledger.allocators[place].allowed_bytes
        room = self._room_bytes(place)
        return room if allowed is None else min(room, allowed)

    def _room_bytes(self, place: int) -> int:
        if self._limit_bytes is not None:
            return self._limit_bytes
        return self.gpu.total_memory_bytes - self._context_bytes(place)

    @property
    def allocator_conf(self) -> str:
        """What PYTORCH_CUDA_ALLOC_CONF says."""
        return self._settings.conf.text

    def _initialize(self) -> None:
        """PyTorch reads the allocator's settings when it first uses the card, not before and not again."""
        if self._ledger.on_first_use is None:
            return
        if self._settings.read():
            self._use_settings()
        self._ledger.on_first_use = None

    def _change_settings(self, text: str) -> None:
        """torch.cuda.memory._set_allocator_settings."""
        self._initialize()
        self._settings.change(text)
        self._use_settings()
        if self._ledger.builder.n_events:
            self._machine.note(
                "allocator", f"changed by the program to {text!r}; a replay keeps one setting throughout"
            )

    def _use_settings(self) -> None:
        for allocator in self._ledger.allocators:
            allocator.set_conf(self._settings.conf)
            self._set_fraction(allocator)

    def _set_fraction(self, allocator: CachingAllocator) -> None:
        fraction = self._settings.conf.per_process_memory_fraction
        if fraction < 1.0:
            allocator.set_memory_fraction(fraction)

    def _set_capacity(self) -> None:
        self._ledger.allocator.set_capacity(self._room_bytes(self._ledger.place))

    def _context_bytes(self, place: int) -> int:
        return context_bytes(self.gpu, self._machine.libraries_on(place))

    def _taken_beside_allocator(self, card: int) -> int:
        """Context and kernels on one of the machine's cards; none where the process has not used it."""
        cards = self._ledger.cards
        return self._context_bytes(cards.index(card)) if card in cards else 0

    # -- entering and leaving -------------------------------------------------------------------------------

    def __enter__(self) -> VirtualGpu:
        global _active
        if _active is not None:
            raise UsageError("a virtual GPU is active already; leave it before you enter another")
        if self._trace is not None:
            raise UsageError("this virtual GPU was used already; make a new one with vramcast.virtual_gpu(...)")
        # Optimizers import dynamo at their first use; it must not find our stand-ins in torch's namespaces.
        with quick_imports():
            importlib.import_module("torch._dynamo")
            importlib.import_module("torch.utils.flop_counter")  # nested tensors look for it among the modes
        cudnn_version()  # torch looks at the cards to tell, and these are not the program's
        accumulation.learn_sole_counts()
        CARD.reset(self._seen_cards or world_in_environment().local_size)
        with ExitStack() as exits:
            _active = self
            exits.enter_context(full_collections_rarely())
            exits.callback(self._finish)
            if self._computes_values:
                exits.enter_context(known_values.of_all_sizes())
            self._replacements.install(exits)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._machine.op_log.python.stop()
        self._exits.__exit__(*exc)

    def log_ops(self, *, after_steps: int | None) -> None:
        """The time of a step is worked out from the ops after this many steps of any optimizer, or (None) only from
        those inside `iteration()`. By default all are noted."""
        self._machine.op_log.ask(after_steps is not None and after_steps <= 0)
        self._position.log_after = after_steps or 0

    def skip_host_draws(self) -> None:
        """For a run without code of the user's: numbers that initialising weights would take are not drawn."""
        self._machine.host_draws.nobody_looks = True

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """One iteration of the training loop; without it a step is taken to end with its optimizer."""
        log = self._machine.op_log
        before = log.ask(True)
        log.mark(ITERATION)
        try:
            yield
        finally:
            log.mark(ITERATION_END)
            log.ask(before)

    def _finish(self) -> None:
        global _active
        try:
            ignored = self._settings.ignored() if self._ledger.on_first_use is None else None
            if ignored is not None:
                self._machine.note("allocator", ignored)
            self._machine.graphs.note_what_is_missing()
            nccl = self._machine.communicators.in_words()
            if nccl is not None:
                self._machine.note("NCCL", nccl)
            self._machine.kept_sums.finish()
            self._position.classify()
            self._ledger.close()
            self._trace = self._build_trace()
        finally:
            _active = None
            forget_cached_tensors()

    # -- results --------------------------------------------------------------------------------------------

    def on_step(self, callback: Callable[[list[int]], None]) -> None:
        """Call `callback` after each optimizer step with the number of steps of every optimizer there is."""
        self._position.on_step = callback

    def on_pass(self, forward: Callable[[torch.nn.Module], None], backward: Callable[[], None]) -> None:
        """Call these when a module is called from outside any other, with that module, and after a backward pass."""
        self._position.on_forward, self._position.on_backward = forward, backward

    @property
    def optimizers(self) -> list[Any]:
        """PyTorch's optimizers that exist."""
        return self._position.optimizers

    @property
    def had_optimizer(self) -> bool:
        """Whether there was one at any time."""
        return self._position.had_optimizer

    @property
    def assumed_values(self) -> Mapping[str, str]:
        """file:line → what it was told of a value that only a real run would know; the latest reads last."""
        return self._machine.assumed_values

    def assume(self, assumptions: Sequence[Assumption]) -> None:
        """Values for reads in certain lines."""
        self._machine.given_values = GivenValues(assumptions)

    def compute_values(self) -> None:
        """Every op is computed on the CPU too, so that the program reads what it would read on a card."""
        self._computes_values = True
        self.note(
            COMPUTED_VALUES,
            "values were computed on the CPU: a card rounds otherwise and draws other random numbers, so what depends "
            "on them can differ",
        )

    def check_assumptions(self) -> None:
        """Called after the run: a note for each assumption that was not used; UsageError for a value that does not fit
        what was read."""
        given = self._machine.given_values
        for text in given.unused(self.assumed_values):
            self.note("--assume", text)
        if given.refused:
            raise given.refused[0]

    @property
    def failed_op(self) -> FailedOp | None:
        """The op that failed last; the program may have caught the error."""
        return self._machine.failed_op

    def count_step(self) -> None:
        """A step has ended that no optimizer of PyTorch's made."""
        self._position.steps_done += 1
        self._ledger.builder.mark("step")

    @property
    def live_bytes(self) -> int:
        """What the program asked for on the card and has not freed."""
        return sum(allocator.requested_bytes for allocator in self._ledger.allocators)

    @property
    def steps_done(self) -> int:
        """Of all optimizers together, as the trace counts them."""
        return self._position.steps_done

    @property
    def builder(self) -> TraceBuilder:
        """The trace as it is being made."""
        return self._ledger.builder

    def name_module(self, module: torch.nn.Module, name: str) -> None:
        """Call a module by this name in the account instead of by its class; it need never be called."""
        self._position.name_module(module, name)

    def note_ops(self, on: bool) -> None:
        """Start or stop noting ops."""
        self._machine.op_log.ask(on)

    def mark(self, label: str) -> None:
        """Leave a mark in the trace, to find this moment again."""
        self._ledger.builder.mark("mark", label)

    def note(self, topic: str, text: str, where: str | None = None) -> None:
        """Tell the reader of the prediction something."""
        self._machine.note(topic, text, where)
        if self._adopted is not None:
            self._trace = self._adopted = self._adopted.changed(notes=(*self._adopted.notes, Note(topic, text, where)))
        elif self._trace is not None:
            self._trace = self._build_trace()

    @property
    def awaits_capture(self) -> bool:
        """Whether a CUDA graph seems about to be captured, and was not yet."""
        return self._machine.graphs.awaited

    @property
    def n_blocks(self) -> int:
        """Allocations so far, by this process."""
        return self._ledger.builder.n_blocks - self._fork[1]

    @property
    def n_events(self) -> int:
        return self._ledger.builder.n_events

    def begin_again_after_fork(self) -> None:
        """Start afresh in a forked process: what its parent has on the card, and did there, is not its own."""
        self._fork = self._ledger.builder.n_events, self._ledger.builder.n_blocks
        self._position.forget_steps()
        self._machine.forget_libraries()

    def before_next_allocation(self, callback: Callable[[], None]) -> None:
        self._ledger.before_next_allocation = callback

    def trace_since_fork(self) -> StepTrace:
        trace = self.trace()
        return trace.between(self._fork[0], trace.n_events)

    def adopt(self, trace: StepTrace) -> None:
        """Answer questions about this card from now on with the trace of another process of the run."""
        self._trace = self._adopted = trace

    @property
    def unknown_kernels(self) -> tuple[UnknownKernel, ...]:
        """Kernels without a rule that the program met; it may have caught the error and gone on."""
        return tuple(self._machine.unknown_kernels)

    def end_at_last_refusal(self) -> None:
        """The run died of an out-of-memory error: what its clean-up allocated does not count."""
        self._ledger.builder.end_at_last_refusal()
        self._trace = self._build_trace()

    def trace(self) -> StepTrace:
        """What was allocated and freed, as data that can be saved and replayed."""
        if self._trace is None:
            self._position.classify()
            return self._build_trace()
        return self._trace

    def prediction(self) -> Prediction:
        """Peaks, verdict, account and time of the run so far."""
        from vramcast.memory import predict, with_time

        return with_time(predict(self.trace()))

    def _build_trace(self) -> StepTrace:
        return self._ledger.builder.build(
            gpu=self.gpu.to_dict(),
            torch_version=torch.__version__,
            allocator_conf=self.allocator_conf,
            capacity_bytes=self._capacity_bytes(0),
            context_bytes=self._context_bytes(0),
            cards=self._cards(),
            versions=_versions(),
            source=self.source,
            host=self._ledger.host.use(),
            growth=self.growth,
        )

    def _cards(self) -> tuple[CardLimits, ...]:
        """The cards of the run, where it used several."""
        if not self._ledger.several_cards:
            return ()
        return tuple(
            CardLimits(card, self._capacity_bytes(place), self._context_bytes(place))
            for place, card in enumerate(self._ledger.cards)
        )

    def _describe_out_of_memory(self, error: OutOfMemory) -> str:
        from vramcast.memory.out_of_memory import describe

        self._position.out_of_memory()
        ledger = self._ledger
        here = ledger.place
        held = ledger.builder.live_blocks(lambda stream: place_of(stream) == here)
        return describe(error, self.gpu, held, self._context_bytes(here), card=ledger.card)


def active_card() -> VirtualGpu | None:
    """The card that this process runs on just now, if it is a virtual one."""
    return _active


def virtual_gpu(
    gpu: str | GpuSpec,
    *,
    allocator_conf: str | None = None,
    limit_bytes: int | None = None,
    source: str = "",
    packages: Sequence[str] = (),
    cards: int | None = None,
) -> VirtualGpu:
    """A virtual card by name ("rtx-4090") or specification.

    `allocator_conf`: what PYTORCH_CUDA_ALLOC_CONF would say (default: the environment's).
    `limit_bytes`: what PyTorch's allocator may reserve, instead of the card's memory less context and kernels.
    `packages`: packages of kernels that will be installed on the real machine ("flash-attn"); a program that cannot run
    without one gets it in any case.
    `cards`: how many such cards the process sees (default: as many as the environment says there are ranks on a
    machine, else one).
    """
    spec = find_gpu(gpu) if isinstance(gpu, str) else gpu
    if limit_bytes is not None and limit_bytes <= 0:
        raise UsageError(f"limit_bytes must be positive, not {limit_bytes}")
    return VirtualGpu(spec, allocator_conf, limit_bytes, source, packages, cards)


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in ("transformers", "diffusers", "peft", "timm", "bitsandbytes", "torchvision", "accelerate"):
        if name in sys.modules:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return versions
