"""torch.cuda as a program on the target card would see it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from vramcast.allocator import CachingAllocator
from vramcast.allocator.card_streams import stream_on
from vramcast.card.device import cuda_graphs, legacy_types
from vramcast.card.device.one_card import (
    CARD,
    check_allocator,
    check_generator,
    check_id,
    check_ordinal,
    check_stream,
    index_of,
)
from vramcast.card.device.patches import CardGenerator
from vramcast.card.device.streams import Event, ExternalStream, Stream
from vramcast.trace.calls import SYNCHRONIZE

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches
    from vramcast.card.dispatch.ledger import Ledger


class Device:
    """`with torch.cuda.device(1)`: the card is the current one until the block ends."""

    def __init__(self, device: Any = None) -> None:
        self.idx = index_of(device)
        self._before: list[int] = []

    def __enter__(self) -> Device:
        check_ordinal(self.idx)
        self._before.append(CARD.index)
        CARD.choose(self.idx)
        return self

    def __exit__(self, *exc: Any) -> None:
        CARD.choose(self._before.pop())


class DeviceOf(Device):
    """`with torch.cuda.device_of(tensor)`: a tensor that is not on the card asks for nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


class _Statistics(dict[str, int]):
    """torch.cuda.memory_stats; the few figures that are not kept (peaks of each pool) read as zero."""

    def __missing__(self, name: str) -> int:
        return 0


def _nested(statistics: Mapping[str, int]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    whole: dict[str, Any] = {}
    for name, value in statistics.items():
        *parts, last = name.split(".")
        inside = whole
        for part in parts:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return whole


class CardProperties(SimpleNamespace):
    """What torch.cuda.get_device_properties returns."""

    def __hash__(self) -> int:  # type: ignore[override]  # compiled code keeps it as a constant
        return hash(self.name)


def replacements(machine: Machine, total_memory_bytes: int, context_bytes: Callable[[int], int]) -> dict[str, Any]:
    """Name in torch.cuda -> what stands there while the virtual GPU is active. `context_bytes` is asked by card."""
    gpu, ledger = machine.gpu, machine.ledger
    streams: dict[tuple[int, int], Stream] = {}

    def allocator(device: Any = None) -> CachingAllocator:
        return ledger.allocator_of(index_of(device))

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def synchronize(device: Any = None) -> None:
        machine.synchronize()
        machine.op_log.mark(SYNCHRONIZE)

    def properties(device: Any = None) -> Any:
        major, minor = gpu.compute_capability
        return CardProperties(
            name=gpu.name,
            major=major,
            minor=minor,
            total_memory=total_memory_bytes,
            multi_processor_count=gpu.sm_count or 0,
            is_integrated=0,
            is_multi_gpu_board=0,
            max_threads_per_multi_processor=gpu.architecture.threads_per_sm,
            warp_size=32,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_multiprocessor=102400,
            L2_cache_size=gpu.l2_bytes or 0,
            gcnArchName="",
            uuid="00000000-0000-0000-0000-000000000000",
        )

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        free = total_memory_bytes - device_memory_used(device)
        return max(free, 0), total_memory_bytes

    def device_memory_used(device: Any = None) -> int:
        return context_bytes(index_of(device)) + allocator(device).reserved_bytes

    def reset_peaks(device: Any = None) -> None:
        index = index_of(device)
        allocator(index).reset_peaks()
        if index in ledger.cards:
            ledger.use_card(index)
            ledger.mark("", "reset_peak")

    def stream_of_number(number: int, card: int) -> Stream:
        if (card, number) not in streams:
            streams[card, number] = Stream(torch.device("cuda", card), stream_id=number)
        return streams[card, number]

    def current_stream(device: Any = None) -> Stream:
        machine.position.follow_stream()
        card = index_of(device)
        return stream_of_number(ledger.stream_on_card(card), card)

    def default_stream(device: Any = None) -> Stream:
        card = index_of(device)
        return stream_of_number(stream_on(ledger.place_of_card(card), 0), card)

    def set_stream(chosen: Any) -> None:
        """Makes the stream's card the current one, too."""
        if chosen is not None:
            streams[chosen.device_index, chosen.stream_id] = chosen
            CARD.choose(chosen.device_index)
            before = ledger.stream_on_card(chosen.device_index)
            ledger.use_stream(chosen.stream_id)
            if chosen.stream_id != before:
                machine.position.node_streams.changed(chosen.stream_id)

    @contextmanager
    def use_stream(stream: Any) -> Iterator[None]:
        before, there = current_stream(), None if stream is None else current_stream(stream.device_index)
        set_stream(stream)
        try:
            yield
        finally:
            set_stream(there)
            set_stream(before)

    def set_fraction(fraction: float, device: Any = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        ledger.place_of_card(index_of(device))
        allocator(device).set_memory_fraction(fraction)

    def set_device(device: Any) -> None:
        CARD.choose(check_ordinal(device))

    def exchange(index: int) -> int:
        before = CARD.index
        CARD.choose(check_ordinal(index))
        return before

    def can_access_peer(device: Any, peer_device: Any) -> bool:
        check_id(device)
        if not 0 <= index_of(peer_device) < CARD.count:
            raise AssertionError("Invalid peer device id")
        return CARD.count > 1 and index_of(device) != index_of(peer_device)

    summary = torch.cuda.memory.memory_summary

    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
        return summary(device, abbreviated=True)  # peaks of each pool are not kept

    state = torch.zeros(16, dtype=torch.uint8, device="cpu")
    api: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: ledger.on_first_use is None,
        "device_count": lambda: CARD.count,
        "current_device": lambda: CARD.index,
        "set_device": set_device,
        "init": nothing,
        "_lazy_init": nothing,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "get_device_name": lambda device=None: gpu.name,
        "get_device_capability": lambda device=None: tuple(gpu.compute_capability),
        "get_device_properties": properties,
        "get_arch_list": lambda: [f"sm_{gpu.compute_capability[0]}{gpu.compute_capability[1]}"],
        "is_bf16_supported": lambda including_emulation=True: including_emulation or gpu.compute_capability >= (8, 0),
        "is_tf32_supported": lambda: gpu.compute_capability >= (8, 0),
        "synchronize": synchronize,
        "ipc_collect": nothing,
        "memory_allocated": lambda device=None: allocator(device).allocated_bytes,
        "max_memory_allocated": lambda device=None: allocator(device).peak_allocated_bytes,
        "memory_reserved": lambda device=None: allocator(device).reserved_bytes,
        "max_memory_reserved": lambda device=None: allocator(device).peak_reserved_bytes,
        "memory_cached": lambda device=None: allocator(device).reserved_bytes,
        "max_memory_cached": lambda device=None: allocator(device).peak_reserved_bytes,
        "memory_stats": lambda device=None: _Statistics(allocator(device).memory_stats()),
        "memory_stats_as_nested_dict": lambda device=None: _nested(allocator(device).memory_stats()),
        "memory_summary": memory_summary,
        "mem_get_info": mem_get_info,
        "empty_cache": machine.empty_cache,
        "reset_peak_memory_stats": reset_peaks,
        "reset_max_memory_allocated": reset_peaks,
        "reset_max_memory_cached": reset_peaks,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "set_per_process_memory_fraction": set_fraction,
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "stream": use_stream,
        "device": Device,
        "device_of": DeviceOf,
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device="cuda": state.clone(),
        "get_rng_state_all": lambda: [state.clone() for _ in range(CARD.count)],
        "set_rng_state": lambda new_state, device="cuda": None,
        "set_rng_state_all": nothing,
        "can_device_access_peer": can_access_peer,
        "utilization": lambda device=None: 0,
        "is_current_stream_capturing": lambda: machine.graphs.is_capturing,
        "get_per_process_memory_fraction": lambda device=None: (
            1.0 if (allowed := allocator(device).allowed_bytes) is None else allowed / total_memory_bytes
        ),
        "default_generators": tuple(CardGenerator() for _ in range(CARD.count)),
        "get_allocator_backend": lambda: "native",
        "get_gencode_flags": lambda: "",
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": nothing,
        "memory_snapshot": lambda *args, **kwargs: _snapshot(ledger)["segments"],
        "memory_usage": lambda device=None: 0,
        "device_memory_used": device_memory_used,
        "temperature": lambda device=None: 0,
        "power_draw": lambda device=None: 0,
        "clock_rate": lambda device=None: 0,
        "list_gpu_processes": lambda device=None: "no processes are running",
        "current_blas_handle": lambda: 0,
        "_record_memory_history": nothing,
        "_dump_snapshot": lambda *args, **kwargs: machine.note("snapshot", "no memory snapshot is written"),
        "_snapshot": lambda *args, **kwargs: _snapshot(ledger),
        "_set_allocator_settings": machine.change_allocator_settings,
    }
    for name, function in api.items():
        check = next((check for check, names in _CHECKS if name in names), None)
        if check is not None:
            function = api[name] = _checked(function, check)
        if name in _INITIALIZE:
            api[name] = _after(machine.initialize, function)
    return api


_CHECKS: list[tuple[Callable[[Any], object], set[str]]] = [
    (check_ordinal, {"synchronize", "mem_get_info"}),
    (check_id, {"get_device_name", "get_device_capability", "get_device_properties"}),
    (check_stream, {"current_stream", "default_stream"}),
    (
        check_allocator,
        {
            "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
            "max_memory_cached", "memory_stats", "memory_stats_as_nested_dict", "memory_summary",
            "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
            "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "get_per_process_memory_fraction",
        },
    ),
    (check_generator, {"get_rng_state", "set_rng_state"}),
]  # fmt: skip
"""Which functions fail, and how, for a card that does not exist."""

_INITIALIZE = {
    "init", "_lazy_init", "current_device", "set_device", "get_device_name", "get_device_capability",
    "get_device_properties", "is_bf16_supported", "is_tf32_supported", "synchronize", "mem_get_info", "current_stream",
    "default_stream", "set_stream", "stream", "set_per_process_memory_fraction", "get_rng_state", "get_rng_state_all",
    "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached", "device_memory_used",
}  # fmt: skip
"""What makes PyTorch initialize CUDA, and so read the allocator's settings (measured, torch 2.11). Not among them:
is_available, device_count, memory_allocated, manual_seed, Stream and Event."""


def _checked(function: Callable[..., Any], check: Callable[[Any], object]) -> Callable[..., Any]:
    """`function`, whose `device` is checked first."""
    names = list(inspect.signature(function).parameters)
    place = names.index("device") if "device" in names else None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            check(kwargs["device"])
        elif place is not None and len(args) > place:
            check(args[place])
        elif place is None and args:  # a stand-in that ignores its arguments
            check(args[-1])
        return function(*args, **kwargs)

    return call


def _after(first: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        first()
        return function(*args, **kwargs)

    return call


def _snapshot(ledger: Ledger) -> dict[str, Any]:
    """torch.cuda.memory._snapshot, without a history."""
    return {
        "segments": [
            {
                "device": card,
                "address": segment.address,
                "total_size": segment.size_bytes,
                "allocated_size": segment.allocated_bytes,
                "active_size": segment.allocated_bytes,
                "requested_size": sum(block.requested_bytes for block in segment.blocks),
                "stream": segment.stream,
                "segment_type": segment.pool,
                "is_expandable": segment.expandable,
                "blocks": [
                    {
                        "address": block.address,
                        "size": block.size_bytes,
                        "requested_size": block.requested_bytes,
                        "state": "active_allocated" if block.allocated else "inactive",
                        "frames": [],
                    }
                    for block in segment.blocks
                ],
            }
            for card, allocator in zip(ledger.cards, ledger.allocators, strict=True)
            for segment in allocator.segments()
        ],
        "device_traces": [[] for _ in range(CARD.count)],
    }


def install(put: Patches, api: dict[str, Any], machine: Machine) -> None:
    """Put the replacements wherever torch keeps these names."""
    for name, value in _distinct(api).items():
        put.set(torch.cuda, name, value)
        for module in (torch.cuda.memory, torch.cuda.random):
            if hasattr(module, name):
                put.set(module, name, value)
    _install_accelerator(put, api)
    put.set(torch, "Stream", Stream)
    put.set(torch, "Event", Event)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        put.set(torch.cuda.nvtx, name, lambda *args, **kwargs: 0)
    put.set(torch.cuda.nvtx, "range", _nvtx_range)
    put.set(torch._C, "_get_accelerator", lambda check_available=None: torch.device("cuda"))
    put.set(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)  # libraries take it from there directly
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        put.set(torch._C, "_accelerator_setAllocatorSettings", api["_set_allocator_settings"])
    if hasattr(torch._C, "_accelerator_getDefaultGenerator"):
        put.set(torch._C, "_accelerator_getDefaultGenerator", api["default_generators"].__getitem__)
    put.set(torch.Tensor, "record_stream", lambda tensor, stream: machine.record_stream(tensor, stream.stream_id))
    legacy_types.install(put)
    put.set(torch._C, "_cuda_clearCublasWorkspaces", machine.clear_cublas_workspaces)
    cuda_graphs.install(put, machine.graphs)


def _install_accelerator(put: Patches, api: dict[str, Any]) -> None:
    """torch.accelerator and its submodules (those that the installed version has): mostly torch.cuda's names."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    accelerator = {
        **api,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": api["current_device"],
        "current_device_idx": api["current_device"],
        "set_device_index": api["set_device"],
        "set_device_idx": api["set_device"],
        "get_memory_info": api["mem_get_info"],
        "get_device_capability": lambda device=None: {"supported_dtypes": set(dtypes)},
        "empty_host_cache": lambda: None,
        "device_index": Device,
    }
    submodules = [getattr(torch.accelerator, name, None) for name in ("memory", "random")]
    for module in filter(None, [torch.accelerator, *submodules]):
        for name in dir(module):
            value = accelerator.get(name)
            if value is not None:
                put.set(module, name, _copy(value, name) if isinstance(value, FunctionType) else value)


def _distinct(api: dict[str, Any]) -> dict[str, Any]:
    """Each name its own function: dynamo has a rule for every function of torch.cuda, and refuses two for one."""
    seen: set[int] = set()
    distinct = {}
    for name, value in api.items():
        if isinstance(value, FunctionType) and id(value) in seen:
            value = _copy(value, name)
        seen.add(id(value))
        distinct[name] = value
    return distinct


def _copy(function: FunctionType, name: str) -> FunctionType:
    return FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)


@contextmanager
def _nvtx_range(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield
