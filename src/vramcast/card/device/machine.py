"""The virtual card's state that ops share: library handles, streams, what was assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from vramcast.allocator.driver_events import CUBLAS_HANDLE, CUDNN_HANDLE
from vramcast.allocator.trials import Trial
from vramcast.base.torch_versions import KEPT_LT_WORKSPACE
from vramcast.card.choices.workspaces import WorkspaceRules
from vramcast.card.device.cuda_graphs import CudaGraphs
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.dispatch.failures import is_our_failure, reason_of
from vramcast.card.dispatch.ledger import INPUTS, Ledger
from vramcast.card.dispatch.op_log import OpLog
from vramcast.card.dispatch.position import Position
from vramcast.card.dispatch.storages import block_of
from vramcast.card.dispatch.unknown import UnknownKernel, caller
from vramcast.card.distributed.kept_sums import KeptSums
from vramcast.card.distributed.nccl import Communicators
from vramcast.card.libraries.cudnn_installed import open_cudnn
from vramcast.card.libraries.problem import ConvolutionProblem
from vramcast.card.values.given_values import GivenValues
from vramcast.card.values.guesses import Guesses
from vramcast.card.values.random_numbers import CardDraws, HostDraws
from vramcast.trace.schema import UNKNOWN_SIZE

ASSUMED = "{0}: assumed {1}"
FITTED_CONVOLUTIONS = (
    'workspaces fitted to cuDNN\'s choices; `pip install "vramcast[cudnn]"` lets vramcast ask cuDNN itself'
)
OLD_CUDNN = (
    "workspaces fitted to cuDNN's choices, because the cuDNN of this torch cannot be asked. Put a newer one into a "
    "folder of its own and name it: pip install --target FOLDER nvidia-cudnn-cu12 nvidia-cublas-cu12; "
    "export VRAMCAST_CUDNN=FOLDER"
)

_MOST_PASSED_CHECKS = 2000
"""In one step."""

TWO_STREAMS = (
    "memory that two streams use can be had again when both are done with it. When that is follows from predicted "
    "times, and on a card reserved memory differs a little from run to run"
)

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec


class FailedOp:
    """The op that failed last: why, in which line, and how far the program was. No frame is kept."""

    def __init__(self, error: RuntimeError, where: str, after_optimizer: bool, n_blocks: int) -> None:
        self.reason, self.is_ours = reason_of(error), is_our_failure(error)
        self.where, self.after_optimizer, self.n_blocks = where, after_optimizer, n_blocks


class Libraries(set[str]):
    """What has been loaded onto the card so far; each takes memory there."""

    def __init__(self, on_load: Callable[[], None]) -> None:
        super().__init__()
        self.on_load = on_load

    def add(self, name: str) -> None:
        if name not in self:
            super().add(name)
            self.on_load()


class Machine:
    def __init__(self, gpu: GpuSpec, ledger: Ledger, position: Position) -> None:
        self.gpu = gpu
        self.ledger = ledger
        self.position = position
        self.locate = position.locate
        self.op_log = OpLog(ledger, position)
        position.mark = self.op_log.mark
        position.on_log = self.op_log.start
        ledger.on_second_card = self.op_log.follow_streams
        self.workspaces = WorkspaceRules(gpu)
        self._cublas_handles: set[tuple[bool, int]] = set()
        self._cublas_workspaces: dict[tuple[bool, int, bool], tuple[int, int]] = {}
        """By thread and stream, cuBLAS's and cuBLASLt's: block and address."""
        self._cudnn_handles: set[tuple[int, bool]] = set()
        """By card, the handles of Python's thread and of autograd's."""
        self.in_math_attention = False
        """attention_choice runs the formula that is written out in ordinary ops."""
        self._plans: dict[tuple[int, bool, ConvolutionProblem], int] = {}
        """The workspace of the plan that cuDNN keeps for a convolution, by card and thread."""
        self._told_of_fit = False
        self._told_of_streams = False
        self._dropout_states: dict[int, torch.Tensor] = {}
        self._libraries: dict[int, Libraries] = {}
        self.on_load_library: Callable[[], None] = lambda: None
        """Called when the card in use has loaded one."""
        self.communicators = Communicators()
        self.kept_sums = KeptSums(gpu, ledger, position, self.op_log)
        self.guesses = Guesses(position, self.engine_is_running)
        self.graphs = CudaGraphs(ledger, position, self.op_log, self.note)
        self._assumed: dict[tuple[str, str], str] = {}
        """What the user assumed for each line that reads an unknown value."""
        self.assumed_values: dict[str, str] = {}
        """Line → what it was told last, in the order of the latest reads."""
        self.given_values = GivenValues()
        self.failed_op: FailedOp | None = None
        self.host_draws = HostDraws()
        self.card_draws = CardDraws()
        self._not_computed: set[str] = set()
        self._passed_checks = [0, 0]
        """The step, and the checks that were taken as passed in it."""
        self.unknown_kernels: list[UnknownKernel] = []
        """Errors raised so far: the program may have swallowed one."""
        self.initialize: Callable[[], None] = lambda: None
        """PyTorch initializes CUDA here, unless it has."""
        self.change_allocator_settings: Callable[[str], None] = lambda conf: None
        self.as_program: Callable[[], AbstractContextManager[None]] = nullcontext
        """Inside, code sees the card as the program does, also from within an op."""
        self.with_functions: Callable[[], AbstractContextManager[None]] = nullcontext
        """The same where ops come to the card already: in a tensor subclass that takes an op apart."""

    @property
    def libraries(self) -> Libraries:
        """What the card in use has loaded."""
        return self.libraries_on(self.ledger.place)

    def libraries_on(self, place: int) -> Libraries:
        """What one of the process's cards has loaded: each has a context of its own."""
        loaded = self._libraries.get(place)
        if loaded is None:
            loaded = self._libraries[place] = Libraries(self.on_load_library)
        return loaded

    def forget_libraries(self) -> None:
        """Forget the libraries loaded so far: they were another process's."""
        self._libraries.clear()
        self._cublas_handles.clear()
        self._cublas_workspaces.clear()
        self._cudnn_handles.clear()
        self._plans.clear()
        self._dropout_states.clear()

    def use_cublas(self, lt: bool = False) -> None:
        """cuBLAS takes its workspace for each handle and stream; autograd's thread has a handle of its own."""
        key = (self.position.backward_depth > 0, self.ledger.stream)
        if key not in self._cublas_handles:
            self._cublas_handles.add(key)
            self.ledger.driver_event(CUBLAS_HANDLE)
            self.libraries.add("cublas-backward" if key[0] else "cublas")
        if (*key, False) not in self._cublas_workspaces:
            self._cublas_workspaces[*key, False] = self.ledger.keep_workspace(self.workspaces.cublas_handle())
        workspace_bytes = self.workspaces.cublas_lt() if lt else None
        if workspace_bytes is None:
            return
        if INSTALLED < KEPT_LT_WORKSPACE:
            self.ledger.transient([workspace_bytes])
        elif (*key, True) not in self._cublas_workspaces:
            self._cublas_workspaces[*key, True] = self.ledger.keep_workspace(workspace_bytes)

    def clear_cublas_workspaces(self) -> None:
        """torch._C._cuda_clearCublasWorkspaces: each is taken again when it is next needed."""
        for block_id, address in self._cublas_workspaces.values():
            if block_id >= 0:
                self.ledger.release(block_id, address)
        self._cublas_workspaces.clear()

    def cudnn_dropout_state(self) -> torch.Tensor:
        """cuDNN's random states for RNN dropout: made once, kept for the process."""
        state = self._dropout_states.get(self.ledger.place)
        if state is None:
            state = self._dropout_states[self.ledger.place] = torch.ops.aten.empty.memory_format(
                [self.workspaces.cudnn_dropout_state()], dtype=torch.uint8, device=torch.device("meta")
            )
        return state

    def engine_is_running(self) -> bool:
        """Whether autograd itself called the op, not Python code inside a backward function.

        Our function mode is off the stack while Python's call is handled, and on it when C++ calls.
        """
        return self.position.backward_depth > 0 and torch._C._len_torch_function_stack() > 0

    def run_convolution(self, problem: ConvolutionProblem, benchmark: bool) -> None:
        """cuDNN's workspace, for the length of a call: of the plan that ran before, else of the first that there is
        memory for. That plan is then kept, thread by thread (run_single_conv in Conv_v8.cpp)."""
        key = (self.ledger.place, self.position.backward_depth > 0, problem)
        kept = self._plans.get(key)
        if kept is not None and self._has_memory(kept):
            return
        plans: Iterable[int] = self.workspaces.convolution(problem)
        if benchmark:
            benchmarked = self.workspaces.benchmark(problem)
            timed = benchmarked.timed_bytes
            self.ledger.try_out(Trial(benchmarked.tried_bytes, timed[0], min(timed), max(timed)))
            self.empty_cache()
            plans = benchmarked.by_speed_bytes
        for workspace_bytes in plans:
            if self._has_memory(workspace_bytes):
                self._plans[key] = workspace_bytes
                return
        raise torch.OutOfMemoryError("CUDA out of memory: no plan for a convolution")

    def _has_memory(self, workspace_bytes: int) -> bool:
        try:
            self.ledger.transient([workspace_bytes])
        except torch.OutOfMemoryError:
            return False
        return True

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache, which empties the caches of all cards."""
        for allocator in self.ledger.allocators:
            allocator.empty_cache()
        self.ledger.builder.mark("empty_cache")

    def use_cudnn(self) -> None:
        """Called where the handle is made: after the results, before the workspace."""
        self.libraries.add("cudnn")
        key = (self.ledger.place, self.position.backward_depth > 0)
        if key not in self._cudnn_handles:
            self._cudnn_handles.add(key)
            self.ledger.driver_event(CUDNN_HANDLE)

    def use_cudnn_for_convolution(self) -> None:
        self.use_cudnn()
        if not self._told_of_fit and open_cudnn() is None:
            self._told_of_fit = True
            self.note("convolutions", FITTED_CONVOLUTIONS if torch.version.cuda is None else OLD_CUDNN)

    def synchronize(self) -> None:
        self.graphs.refuse_synchronizing()
        self.ledger.timeline.finish_all()
        self.ledger.builder.mark("synchronize")

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """When the memory can be had again depends on the time of what runs from here on."""
        self.op_log.start()
        if self.ledger.record_stream(tensor, stream) and not self._told_of_streams:
            self._told_of_streams = True
            self.note("streams", TWO_STREAMS)

    def note_gradients_of_other_streams(self, args: tuple[Any, ...]) -> None:
        """Autograd itself calls record_stream where a node hands a gradient to a node of another stream
        (InputBuffer::add)."""
        if not self.position.backward_depth:
            return
        self.position.follow_stream()
        for value in args:
            if isinstance(value, torch.Tensor) and value.is_meta:
                block = block_of(value)
                if block is not None and self.position.made_in_backward(block.block_id):
                    self.record_stream(value, self.ledger.stream)

    def note_input(self, tensor: torch.Tensor) -> None:
        block = block_of(tensor)
        if block is not None and block.block_id >= 0:
            self.ledger.builder.set_kind(block.block_id, INPUTS)

    def report_unknown(self, error: UnknownKernel) -> UnknownKernel:
        self.unknown_kernels.append(error)
        return error

    def note_failed_op(self, error: RuntimeError) -> None:
        """Note an op that failed; the program may catch the error and go on."""
        if not isinstance(error, torch.OutOfMemoryError):
            self.failed_op = FailedOp(error, caller(), self.position.had_optimizer, self.ledger.builder.n_blocks)

    def note_unknown_read(self, what: str, assumed: str, *, decides_sizes: bool = False) -> None:
        """Note a line that reads unknown values once, with the first of them."""
        where = caller()
        self.assumed_values.pop(where, None)
        self.assumed_values[where] = assumed
        text = self._assumed.setdefault((what, where), ASSUMED.format(what, assumed))
        self.ledger.builder.note(UNKNOWN_SIZE if decides_sizes else "unknown value", text, where)

    def note_not_computed(self, func: Any) -> None:
        """With --compute-values: an op of which the CPU has no kernel."""
        name = str(func).removesuffix(".default")
        if name not in self._not_computed:
            self._not_computed.add(name)
            self.note(
                "unknown value", f"{name} cannot be computed on the CPU; what follows from it is assumed", caller()
            )

    def may_pass_check(self) -> bool:
        """Whether a check may still be taken as passed: a loop that only a failing check ends must end."""
        step = self.position.steps_done
        if self._passed_checks[0] != step:
            self._passed_checks = [step, 0]
        self._passed_checks[1] += 1
        return self._passed_checks[1] <= _MOST_PASSED_CHECKS

    def note(self, topic: str, text: str, where: Any = None) -> None:
        self.ledger.builder.note(topic, text, where)
