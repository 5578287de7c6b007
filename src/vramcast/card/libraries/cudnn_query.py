"""Ask cuDNN itself, on a machine without a GPU, how much workspace a convolution's plan takes.

Since version 9.8 cuDNN answers heuristics queries for a device that is only described to it ("deviceless
ahead-of-time compilation"). PyTorch runs the first plan of these heuristics that its filter lets pass
(aten/src/ATen/native/cudnn/Conv_v8.cpp). Engines that need a present device are dropped from the answer, but cuDNN
logs each one that it drops, in order and with the reason: `Choice.refused` holds those that ranked higher. The
library is looked for in `cudnn_installed`; where there is none, `cudnn_fit` stands in.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from vramcast.card.libraries.problem import ConvolutionProblem
from vramcast.gpus.architectures import architecture

# cudnn_graph.h: descriptor kinds, attribute names, attribute types, enumerators.
_CONVOLUTION, _ENGINE, _ENGINE_CONFIG, _HEURISTICS, _PLAN = 1, 2, 3, 4, 5
_KNOB_CHOICE, _GRAPH, _TENSOR, _DEVICE = 7, 15, 17, 38
_TYPE_DATA, _TYPE_INT64, _TYPE_FLOAT, _TYPE_MODE, _TYPE_HEURISTIC_MODE = 1, 3, 4, 7, 8
_TYPE_KNOB, _TYPE_NOTE, _TYPE_DESCRIPTOR, _TYPE_INT32, _TYPE_CHAR = 9, 11, 15, 23, 24
_FLOAT, _CROSS_CORRELATION = 0, 1
_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_HEURISTIC_MODES = (0, 2)  # CUDNN_HEUR_MODE_INSTANT, then CUDNN_HEUR_MODE_FALLBACK
_NOTE_TENSOR_CORE, _NOTE_DOWN_CONVERT, _NOTE_NONDETERMINISTIC, _NOTE_COUNT = 0, 1, 4, 10
_POINTER_ALIGNMENT = 16  # what PyTorch declares for any block of its allocator
_MOST_KNOBS = 40
_LOG_EVERYTHING, _LOG_NOTHING = 0xF, 0
_LOG_OF_REFUSALS, _LOG_OF_ENGINE = b"engine_config_support_checks", b"engineConfig: type=json; val="

# Kind of the operation, and its attributes: (kind, w, x, y, convolution, alpha, beta).
_OPERATIONS = {
    "forward": (10, 703, 704, 705, 702, 700, 701),
    "backward_data": (12, 709, 710, 711, 708, 706, 707),
    "backward_weight": (11, 715, 716, 717, 714, 712, 713),
}


@dataclass(frozen=True, slots=True)
class CudnnDevice:
    """What cuDNN's heuristics want to know of a card."""

    compute_capability: tuple[int, int]
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    name: str = ""

    def as_json(self) -> str:
        """The card in the form of CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION."""
        major, minor = self.compute_capability
        # Before Volta a Hopper's limits are told, as for any architecture whose answers were never compared.
        card = architecture(self.compute_capability if self.compute_capability >= (7, 0) else (9, 0))
        return json.dumps({
            "deviceVer": major * 100 + minor * 10, "driverVer": 13000, "cudaDeviceId": 0,
            "totalGlobalMem": self.memory_bytes, "maxGridSize": [2147483647, 65535, 65535],
            "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "multiProcessorCount": self.sm_count,
            "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,
            "maxSharedMemoryPerBlockOptin": card.shared_bytes_per_block, "maxRegistersPerSM": 65536,
            "maxCtasPerSM": card.blocks_per_sm, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": card.threads_per_sm,
            "pciDeviceId": 0, "isTccDriver": 0,
            "supportCoopLaunch": 1, "smClockRateKHz": 1_980_000, "memClockRateKHz": 3_201_000,
            "l2CacheSize": self.l2_bytes, "deviceName": self.name,
        })  # fmt: skip


class CudnnError(Exception):
    """cuDNN answered with an error status."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An engine that ranked higher than the chosen one but was dropped, and cuDNN's reasons."""

    engine: int
    reasons: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan that PyTorch would run: its engine, the engine's knobs (by cudnnBackendKnobType_t), its workspace."""

    engine: int
    knobs: tuple[tuple[int, int], ...]
    workspace_bytes: int
    refused: tuple[Refusal, ...]
    tensor_cores: bool


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every plan in the order PyTorch tries them, each with the engines that were dropped right before it; and the
    engines that were dropped after the last plan."""

    plans: tuple[Choice, ...]
    refused_last: tuple[Refusal, ...]


class CudnnLibrary:
    """A loaded libcudnn that can be asked about devices that are not here."""

    def __init__(self, library: ctypes.CDLL, version: int) -> None:
        self._library = library
        self.version = version
        self._devices: dict[CudnnDevice, ctypes.c_void_p] = {}

    @lru_cache(maxsize=20_000)  # noqa: B019  (one library for the life of the process)
    def choice(self, problem: ConvolutionProblem, device: CudnnDevice) -> Choice | None:
        """The first plan in the order PyTorch tries them; None: cuDNN has none."""
        described = self._device(device)
        refused: list[Refusal] = []
        with self._descriptors() as make:
            graph = self._graph(problem, make)
            for mode in _HEURISTIC_MODES:
                heuristics = self._heuristics(graph, described, mode, make)
                if heuristics is None:
                    continue
                with self._refusals(refused):
                    configs = self._results(heuristics, 1, make)
                if not configs:
                    continue
                if self._is_filtered(configs[0], problem, make):
                    configs = [c for c in self._configs(graph, described, mode, make)
                               if not self._is_filtered(c, problem, make)]  # fmt: skip
                for config in configs:
                    workspace = self._plan_workspace(config, described, make)
                    if workspace is not None:
                        return self._choice(config, workspace, dict.fromkeys(refused), make)
        return None

    @lru_cache(maxsize=5_000)  # noqa: B019  (one library for the life of the process)
    def ranking(self, problem: ConvolutionProblem, device: CudnnDevice) -> Ranking:
        described = self._device(device)
        plans, carried = [], []
        with self._descriptors() as make:
            graph = self._graph(problem, make)
            for mode in _HEURISTIC_MODES:
                ranked, refused_last = self._ranked(graph, described, mode, make)
                for config, refused in ranked:
                    carried += refused
                    workspace = self._plan_workspace(config, described, make)
                    if workspace is not None and not self._is_filtered(config, problem, make):
                        plans.append(self._choice(config, workspace, carried, make))
                        carried = []
                carried += refused_last
        return Ranking(tuple(plans), tuple(carried))

    def _ranked(
        self, graph: ctypes.c_void_p, device: ctypes.c_void_p, mode: int, make: _Maker
    ) -> tuple[list[tuple[ctypes.c_void_p, list[Refusal]]], list[Refusal]]:
        refused: list[Refusal] = []
        with self._refusals(refused):
            configs = self._configs(graph, device, mode, make)
        # The log does not say where it dropped an engine, but an answer of fewer plans logs only what came before.
        logged = {0: 0, len(configs) + 1: len(refused)}

        def ask_between(first: int, last: int) -> None:
            """Fill in how many engines are dropped up to each plan; where none is in between, nothing is asked."""
            if last - first < 2:
                return
            middle = (first + last) // 2
            if logged[first] == logged[last]:
                logged[middle] = logged[first]
            else:
                logged[middle] = self._dropped(graph, device, mode, middle, make)
            ask_between(first, middle)
            ask_between(middle, last)

        ask_between(0, len(configs) + 1)
        ranked = [(config, refused[logged[place] : logged[place + 1]]) for place, config in enumerate(configs)]
        return ranked, refused[logged[len(configs)] :]

    def _dropped(self, graph: ctypes.c_void_p, device: ctypes.c_void_p, mode: int, count: int, make: _Maker) -> int:
        """How many engines are dropped from an answer of `count` plans."""
        heuristics = self._heuristics(graph, device, mode, make)
        assert heuristics is not None
        refused: list[Refusal] = []
        with self._refusals(refused):
            self._results(heuristics, count, make)
        return len(refused)

    def forced_workspace(
        self, problem: ConvolutionProblem, device: CudnnDevice, engine: int, knobs: Mapping[int, int], sm_count: int
    ) -> int | None:
        """The workspace of a given engine with given knobs, told to use `sm_count` multiprocessors (0: all)."""
        described = self._device(device)
        with self._descriptors() as make:
            chosen = make(_ENGINE)
            self._set(chosen, 1300, _TYPE_DESCRIPTOR, 1, ctypes.byref(self._graph(problem, make)))
            self._set(chosen, 1301, _TYPE_INT64, 1, _int64s([engine]))
            self._set(chosen, 1307, _TYPE_DESCRIPTOR, 1, ctypes.byref(described))
            if sm_count:
                self._set(chosen, 1306, _TYPE_INT32, 1, ctypes.byref(ctypes.c_int32(sm_count)))
            if self._library.cudnnBackendFinalize(chosen) != 0:
                return None
            config = make(_ENGINE_CONFIG)
            self._set(config, 300, _TYPE_DESCRIPTOR, 1, ctypes.byref(chosen))
            settings = [self._knob(kind, value, make).value for kind, value in knobs.items()]
            self._set(config, 302, _TYPE_DESCRIPTOR, len(settings), (ctypes.c_void_p * len(settings))(*settings))
            if self._library.cudnnBackendFinalize(config) != 0:
                return None
            return self._plan_workspace(config, described, make)

    def _device(self, device: CudnnDevice) -> ctypes.c_void_p:
        if device not in self._devices:
            descriptor = ctypes.c_void_p()
            _check(self._library.cudnnBackendCreateDescriptor(_DEVICE, ctypes.byref(descriptor)))
            text = device.as_json().encode()
            self._set(descriptor, 2702, _TYPE_CHAR, len(text), ctypes.create_string_buffer(text))
            self._finalize(descriptor)
            self._devices[device] = descriptor
        return self._devices[device]

    def _graph(self, problem: ConvolutionProblem, make: _Maker) -> ctypes.c_void_p:
        x = self._tensor(ord("x"), problem.x, problem, make)
        w = self._tensor(ord("w"), problem.w, problem, make)
        y = self._tensor(ord("y"), problem.y, problem, make)
        convolution = make(_CONVOLUTION)
        dims = len(problem.x) - 2
        self._set(convolution, 100, _TYPE_DATA, 1, ctypes.byref(ctypes.c_int(_FLOAT)))
        self._set(convolution, 101, _TYPE_MODE, 1, ctypes.byref(ctypes.c_int(_CROSS_CORRELATION)))
        self._set(convolution, 106, _TYPE_INT64, 1, _int64s([dims]))
        self._set(convolution, 102, _TYPE_INT64, dims, _int64s(problem.dilation))
        self._set(convolution, 103, _TYPE_INT64, dims, _int64s(problem.stride))
        self._set(convolution, 104, _TYPE_INT64, dims, _int64s(problem.padding))
        self._set(convolution, 105, _TYPE_INT64, dims, _int64s(problem.padding))
        self._finalize(convolution)
        kind, w_name, x_name, y_name, convolution_name, alpha, beta = _OPERATIONS[problem.operation]
        operation = make(kind)
        for name, part in ((x_name, x), (w_name, w), (y_name, y), (convolution_name, convolution)):
            self._set(operation, name, _TYPE_DESCRIPTOR, 1, ctypes.byref(part))
        self._set(operation, alpha, _TYPE_FLOAT, 1, ctypes.byref(ctypes.c_float(1)))
        self._set(operation, beta, _TYPE_FLOAT, 1, ctypes.byref(ctypes.c_float(0)))
        self._finalize(operation)
        graph = make(_GRAPH)
        self._set(graph, 801, _TYPE_DESCRIPTOR, 1, ctypes.byref(operation))
        self._finish_graph(graph)
        return graph

    def _finish_graph(self, graph: ctypes.c_void_p) -> None:
        self._finalize(graph)

    def _tensor(self, uid: int, shape: tuple[int, ...], problem: ConvolutionProblem, make: _Maker) -> ctypes.c_void_p:
        tensor = make(_TENSOR)
        self._set(tensor, 901, _TYPE_DATA, 1, ctypes.byref(ctypes.c_int(_DATA_TYPES[problem.dtype])))
        self._set(tensor, 902, _TYPE_INT64, len(shape), _int64s(shape))
        self._set(tensor, 903, _TYPE_INT64, len(shape), _int64s(strides(shape, problem.channels_last)))
        self._set(tensor, 906, _TYPE_INT64, 1, _int64s([uid]))
        self._set(tensor, 900, _TYPE_INT64, 1, _int64s([_POINTER_ALIGNMENT]))
        self._finalize(tensor)
        return tensor

    def _configs(
        self, graph: ctypes.c_void_p, device: ctypes.c_void_p, mode: int, make: _Maker
    ) -> list[ctypes.c_void_p]:
        """Every plan of one mode, best first."""
        heuristics = self._heuristics(graph, device, mode, make)
        if heuristics is None:
            return []
        return self._results(heuristics, self._get(heuristics, 202, _TYPE_DESCRIPTOR, 0, None), make)

    def _heuristics(
        self, graph: ctypes.c_void_p, device: ctypes.c_void_p, mode: int, make: _Maker
    ) -> ctypes.c_void_p | None:
        heuristics = make(_HEURISTICS)
        self._set(heuristics, 201, _TYPE_DESCRIPTOR, 1, ctypes.byref(graph))
        self._set(heuristics, 200, _TYPE_HEURISTIC_MODE, 1, ctypes.byref(ctypes.c_int(mode)))
        self._set_heuristics_device(heuristics, device)
        # A failure says that nothing in this mode supports the problem.
        return heuristics if self._library.cudnnBackendFinalize(heuristics) == 0 else None

    def _results(self, heuristics: ctypes.c_void_p, limit: int, make: _Maker) -> list[ctypes.c_void_p]:
        if not limit:
            return []
        configs = (ctypes.c_void_p * limit)(*(make(_ENGINE_CONFIG).value for _ in range(limit)))
        count = self._get(heuristics, 202, _TYPE_DESCRIPTOR, limit, configs)
        return [ctypes.c_void_p(configs[index]) for index in range(count)]

    @contextmanager
    def _refusals(self, refusals: list[Refusal]) -> Iterator[None]:
        """Collect what cuDNN logs about engines it drops meanwhile."""

        def log(_severity: int, _data: object, _debug: object, message: int) -> None:
            refusals.extend(_refusals_in(_lines(message)))

        callback = _LOG_CALLBACK(log)
        with _LOG_LOCK:
            self._library.cudnnSetCallback(ctypes.c_uint(_LOG_EVERYTHING), None, callback)
            try:
                yield
            finally:
                self._library.cudnnSetCallback(ctypes.c_uint(_LOG_NOTHING), None, _LOG_CALLBACK())

    def _choice(
        self, config: ctypes.c_void_p, workspace_bytes: int, refused: Iterable[Refusal], make: _Maker
    ) -> Choice:
        tensor_cores = _NOTE_TENSOR_CORE in self._notes(config, make)
        return Choice(
            self._engine(config, make), self._knobs(config, make), workspace_bytes, tuple(refused), tensor_cores
        )

    def _engine(self, config: ctypes.c_void_p, make: _Maker) -> int:
        engine, index = make(_ENGINE), ctypes.c_int64()
        self._get(config, 300, _TYPE_DESCRIPTOR, 1, ctypes.byref(engine))
        self._get(engine, 1301, _TYPE_INT64, 1, ctypes.byref(index))
        return index.value

    def _knobs(self, config: ctypes.c_void_p, make: _Maker) -> tuple[tuple[int, int], ...]:
        choices = (ctypes.c_void_p * _MOST_KNOBS)(*(make(_KNOB_CHOICE).value for _ in range(_MOST_KNOBS)))
        knobs = []
        for index in range(self._get(config, 302, _TYPE_DESCRIPTOR, _MOST_KNOBS, choices)):
            choice, kind, value = ctypes.c_void_p(choices[index]), ctypes.c_int(), ctypes.c_int64()
            self._get(choice, 600, _TYPE_KNOB, 1, ctypes.byref(kind))
            self._get(choice, 601, _TYPE_INT64, 1, ctypes.byref(value))
            knobs.append((kind.value, value.value))
        return tuple(knobs)

    def _knob(self, kind: int, value: int, make: _Maker) -> ctypes.c_void_p:
        choice = make(_KNOB_CHOICE)
        self._set(choice, 600, _TYPE_KNOB, 1, ctypes.byref(ctypes.c_int(kind)))
        self._set(choice, 601, _TYPE_INT64, 1, _int64s([value]))
        self._finalize(choice)
        return choice

    def _set_heuristics_device(self, heuristics: ctypes.c_void_p, device: ctypes.c_void_p) -> None:
        self._set(heuristics, 204, _TYPE_DESCRIPTOR, 1, ctypes.byref(device))

    def _is_filtered(self, config: ctypes.c_void_p, problem: ConvolutionProblem, make: _Maker) -> bool:
        """The plans that PyTorch refuses (filterEngineConfigs)."""
        present = self._notes(config, make)
        if _NOTE_DOWN_CONVERT in present or (problem.deterministic and _NOTE_NONDETERMINISTIC in present):
            return True
        return problem.dtype == "float32" and not problem.tf32 and _NOTE_TENSOR_CORE in present

    def _notes(self, config: ctypes.c_void_p, make: _Maker) -> set[int]:
        """cudnnBackendNumericalNote_t of the plan's engine."""
        engine = make(_ENGINE)
        self._get(config, 300, _TYPE_DESCRIPTOR, 1, ctypes.byref(engine))
        notes = (ctypes.c_int * _NOTE_COUNT)()
        count = self._get(engine, 1303, _TYPE_NOTE, _NOTE_COUNT, notes)
        return set(notes[:count])

    def _plan_workspace(self, config: ctypes.c_void_p, device: ctypes.c_void_p, make: _Maker) -> int | None:
        plan = make(_PLAN)
        self._set(plan, 401, _TYPE_DESCRIPTOR, 1, ctypes.byref(config))
        self._set(plan, 407, _TYPE_DESCRIPTOR, 1, ctypes.byref(device))
        if self._library.cudnnBackendFinalize(plan) != 0:
            return None
        size = ctypes.c_int64()
        self._get(plan, 402, _TYPE_INT64, 1, ctypes.byref(size))
        return size.value

    def _set(self, descriptor: ctypes.c_void_p, name: int, kind: int, count: int, value: object) -> None:
        _check(self._library.cudnnBackendSetAttribute(descriptor, name, kind, ctypes.c_int64(count), value))

    def _get(self, descriptor: ctypes.c_void_p, name: int, kind: int, room: int, value: object) -> int:
        count = ctypes.c_int64()
        _check(
            self._library.cudnnBackendGetAttribute(
                descriptor, name, kind, ctypes.c_int64(room), ctypes.byref(count), value
            )
        )
        return count.value

    def _finalize(self, descriptor: ctypes.c_void_p) -> None:
        _check(self._library.cudnnBackendFinalize(descriptor))

    @contextmanager
    def _descriptors(self) -> Iterator[_Maker]:
        """A maker of descriptors that are all destroyed at the end."""
        maker = _Maker(self._library)
        try:
            yield maker
        finally:
            maker.destroy()


class _Maker:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._made: list[ctypes.c_void_p] = []

    def __call__(self, kind: int) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        _check(self._library.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
        self._made.append(descriptor)
        return descriptor

    def destroy(self) -> None:
        for descriptor in self._made:
            self._library.cudnnBackendDestroyDescriptor(descriptor)


def strides(shape: Sequence[int], channels_last: bool) -> list[int]:
    """Strides of a dense tensor; dimensions of size one get the stride their place implies, as PyTorch passes them."""
    order = [1, *range(len(shape) - 1, 1, -1), 0] if channels_last else list(range(len(shape) - 1, -1, -1))
    result, step = [0] * len(shape), 1
    for dim in order:
        result[dim] = step
        step *= shape[dim]
    return result


_LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_LOG_LOCK = threading.Lock()


def _lines(address: int) -> bytes:
    """A log message: strings one after the other, ended by an empty one."""
    lines = []
    while line := ctypes.string_at(address):
        lines.append(line)
        address += len(line) + 1
    return b"\n".join(lines)


def _refusals_in(message: bytes) -> Iterator[Refusal]:
    if _LOG_OF_REFUSALS not in message:
        return
    for part in message.split(_LOG_OF_ENGINE)[1:]:
        config, _, reasons = part.partition(b";\n")
        yield Refusal(int(json.loads(config)["engineId"]), reasons.decode(errors="replace"))


def _int64s(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def _check(status: int) -> None:
    if status != 0:
        raise CudnnError(f"cuDNN status {status}")
