"""Memory outside the allocator, and when library handles take their workspace: fresh processes, step by step."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.measuring.workspace_sweep.record import record

Step = tuple[str, Callable[[], Any]]


class _MemoryInfo(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The driver's management library, which counts memory without making a CUDA context."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        if self.library.nvmlInit_v2() != 0:
            raise OSError("nvmlInit failed")
        self.handle = ctypes.c_void_p()
        self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle))

    def used_bytes(self) -> int:
        info = _MemoryInfo()
        status = self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(info))
        return int(info.used) if status == 0 else -1

    def process_bytes(self) -> list[tuple[int, int]]:
        count = ctypes.c_uint(64)
        infos = (_ProcessInfo * 64)()
        status = self.library.nvmlDeviceGetComputeRunningProcesses_v3(self.handle, ctypes.byref(count), infos)
        return [(int(info.pid), int(info.used)) for info in infos[: count.value]] if status == 0 else []


def _conv(dtype: torch.dtype, channels_last: bool = False) -> Callable[[], None]:
    def run() -> None:
        x = torch.zeros(4, 64, 32, 32, device="cuda", dtype=dtype, requires_grad=True)
        layer = nn.Conv2d(64, 64, 3, padding=1, device="cuda", dtype=dtype)
        if channels_last:
            layer = layer.to(memory_format=torch.channels_last)
            x = x.detach().to(memory_format=torch.channels_last).requires_grad_()
        layer(x).sum().backward()

    return run


def _conv_forward(dtype: torch.dtype) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            x = torch.zeros(4, 64, 32, 32, device="cuda", dtype=dtype)
            F.conv2d(x, torch.zeros(64, 64, 3, 3, device="cuda", dtype=dtype))

    return run


def _product(kind: str, dtype: torch.dtype) -> Callable[[], None]:
    def run() -> None:
        a = torch.zeros(256, 256, device="cuda", dtype=dtype)
        if kind == "mm":
            torch.mm(a, a)
        elif kind == "addmm":
            torch.addmm(a[0], a, a)
        elif kind == "linear":
            F.linear(a, a, a[0])
        elif kind == "bmm":
            torch.bmm(a.view(4, 64, 256), a.view(4, 256, 64))
        elif kind == "baddbmm":
            torch.baddbmm(a.view(16, 64, 64), a.view(16, 64, 64), a.view(16, 64, 64))
        elif kind == "backward":
            b = a.requires_grad_()
            (b @ b).sum().backward()
        elif kind == "linear_backward":
            b = a.requires_grad_()
            F.linear(b, b, b[0]).sum().backward()

    return run


def _attention(dtype: torch.dtype, backward: bool) -> Callable[[], None]:
    def run() -> None:
        q = torch.zeros(2, 4, 128, 64, device="cuda", dtype=dtype, requires_grad=backward)
        out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        if backward:
            out.sum().backward()

    return run


def _rnn() -> None:
    layer = nn.LSTM(64, 128, 2, device="cuda")
    layer(torch.zeros(20, 8, 64, device="cuda"))[0].sum().backward()


def _optimizer(**flags: bool) -> Callable[[], None]:
    def run() -> None:
        parameter = nn.Parameter(torch.zeros(100_000, device="cuda"))
        optimizer = torch.optim.AdamW([parameter], **flags)
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    return run


def _norms() -> None:
    x = torch.zeros(64, 768, device="cuda", requires_grad=True)
    weight = torch.ones(768, device="cuda", requires_grad=True)
    F.layer_norm(x, (768,), weight, weight).sum().backward()


def _batch_norm() -> None:
    layer = nn.BatchNorm2d(64, device="cuda")
    F.max_pool2d(F.relu(layer(torch.zeros(8, 64, 32, 32, device="cuda"))), 2).sum().backward()


def _losses() -> None:
    x = torch.zeros(64, 1000, device="cuda", requires_grad=True)
    F.cross_entropy(F.dropout(F.gelu(x)), torch.zeros(64, dtype=torch.int64, device="cuda")).backward()


def _embedding() -> None:
    weight = torch.zeros(1000, 64, device="cuda", requires_grad=True)
    F.embedding(torch.zeros(8, 128, dtype=torch.int64, device="cuda"), weight).sum().backward()


def _fft(forward: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    def run() -> None:
        forward(torch.zeros(4, 32, 64, 64, device="cuda"))

    return run


def _transformer(autocast: bool) -> Callable[[], None]:
    def run() -> None:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, device="cuda")
        head = nn.Linear(256, 1000, device="cuda")
        parameters = [*layer.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters)
        x = torch.zeros(4, 128, 256, device="cuda")
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(head(layer(x)).flatten(0, 1), torch.zeros(512, dtype=torch.int64, device="cuda"))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def _convnet(autocast: bool, channels_last: bool) -> Callable[[], None]:
    def run() -> None:
        widths = (3, 32, 64, 128, 256)
        layers: list[nn.Module] = []
        for cin, cout in itertools.pairwise(widths):
            layers += [nn.Conv2d(cin, cout, 3, 2, 1), nn.BatchNorm2d(cout), nn.ReLU(), nn.Conv2d(cout, cout, 1)]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
        x = torch.zeros(8, 3, 128, 128, device="cuda")
        if channels_last:
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(x), torch.zeros(8, dtype=torch.int64, device="cuda"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def _on_stream(call: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            call()
        torch.cuda.synchronize()

    return run


def _prefer(library: str) -> Callable[[], None]:
    def run() -> None:
        torch.backends.cuda.preferred_blas_library(library)

    return run


def _clear_workspaces() -> None:
    torch._C._cuda_clearCublasWorkspaces()


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ELEMENTWISE: list[Step] = [
    ("context", torch.cuda.init),
    ("synchronize", torch.cuda.synchronize),
    ("first allocation", lambda: torch.empty(1, device="cuda")),
    ("fill", lambda: torch.zeros(1000, device="cuda")),
    ("add", lambda: torch.zeros(1000, device="cuda") + 1),
    ("sum", lambda: torch.zeros(1000, device="cuda").sum()),
    ("random", lambda: torch.randn(1000, device="cuda")),
]
SEQUENCES: dict[str, list[Step]] = {
    "cudnn device properties": [],
    "transformer parts": [
        *ELEMENTWISE,
        ("mm f32", _product("mm", F32)),
        ("mm f32 again", _product("mm", F32)),
        ("mm bf16", _product("mm", BF16)),
        ("mm f16", _product("mm", F16)),
        ("linear bf16", _product("linear", BF16)),
        ("linear f32", _product("linear", F32)),
        ("mm f32 backward", _product("backward", F32)),
        ("linear bf16 backward", _product("linear_backward", BF16)),
        ("bmm f32", _product("bmm", F32)),
        ("bmm bf16", _product("bmm", BF16)),
        ("sdpa bf16", _attention(BF16, False)),
        ("sdpa bf16 backward", _attention(BF16, True)),
        ("sdpa f32", _attention(F32, False)),
        ("sdpa f32 backward", _attention(F32, True)),
        ("embedding", _embedding),
        ("layer norm", _norms),
        ("gelu dropout cross entropy", _losses),
        ("adamw foreach", _optimizer(foreach=True)),
        ("adamw fused", _optimizer(fused=True)),
        ("conv f32", _conv(F32)),
        ("conv bf16", _conv(BF16)),
        ("lstm", _rnn),
        ("rfft2", _fft(torch.fft.rfft2)),
    ],
    "convolution parts": [
        *ELEMENTWISE,
        ("conv f32 forward", _conv_forward(F32)),
        ("conv f32", _conv(F32)),
        ("conv f32 again", _conv(F32)),
        ("conv bf16", _conv(BF16)),
        ("conv bf16 channels-last", _conv(BF16, True)),
        ("conv f16", _conv(F16)),
        ("conv f32 channels-last", _conv(F32, True)),
        ("batch norm relu pool", _batch_norm),
        ("mm f32", _product("mm", F32)),
        ("mm bf16", _product("mm", BF16)),
        ("sgd-like adamw foreach", _optimizer(foreach=True)),
    ],
    "bf16 matmul first": [*ELEMENTWISE[:4], ("mm bf16", _product("mm", BF16)), ("mm f32", _product("mm", F32))],
    "bf16 conv first": [*ELEMENTWISE[:4], ("conv bf16 forward", _conv_forward(BF16)), ("conv bf16", _conv(BF16))],
    "rnn first": [*ELEMENTWISE[:4], ("lstm", _rnn), ("lstm again", _rnn)],
    "fft first": [
        *ELEMENTWISE[:4],
        ("rfft2", _fft(torch.fft.rfft2)),
        ("rfft2 of another size", lambda: torch.fft.rfft2(torch.zeros(2, 8, 100, 100, device="cuda"))),
        ("fftn", _fft(lambda x: torch.fft.fftn(x, dim=(1, 2, 3)))),
    ],
    "attention bf16 first": [*ELEMENTWISE[:4], ("sdpa bf16", _attention(BF16, False)),
                             ("sdpa bf16 backward", _attention(BF16, True))],
    "attention f32 first": [*ELEMENTWISE[:4], ("sdpa f32", _attention(F32, False)),
                            ("sdpa f32 backward", _attention(F32, True))],
    "transformer step f32": [("step", _transformer(False)), ("step again", _transformer(False))],
    "transformer step bf16 autocast": [("step", _transformer(True)), ("step again", _transformer(True))],
    "convnet step f32": [("step", _convnet(False, False)), ("step again", _convnet(False, False))],
    "convnet step bf16 autocast channels-last": [("step", _convnet(True, True)), ("again", _convnet(True, True))],
    "convnet step bf16 autocast": [("step", _convnet(True, False)), ("again", _convnet(True, False))],
    "blas handles": [
        ("fill", lambda: torch.zeros(1000, device="cuda")),
        ("linear bf16", _product("linear", BF16)),
        ("linear bf16 again", _product("linear", BF16)),
        ("mm f32", _product("mm", F32)),
        ("mm bf16", _product("mm", BF16)),
        ("baddbmm bf16", _product("baddbmm", BF16)),
        ("addmm f32", _product("addmm", F32)),
        ("linear f32", _product("linear", F32)),
        ("mm f32 backward", _product("backward", F32)),
        ("mm f32 backward again", _product("backward", F32)),
        ("linear f32 backward", _product("linear_backward", F32)),
        ("linear bf16 backward", _product("linear_backward", BF16)),
        ("mm f32 on another stream", _on_stream(_product("mm", F32))),
        ("linear bf16 on another stream", _on_stream(_product("linear", BF16))),
        ("clear workspaces", _clear_workspaces),
        ("mm f32 after clearing", _product("mm", F32)),
        ("prefer cublaslt", _prefer("cublaslt")),
        ("mm f32 cublaslt", _product("mm", F32)),
        ("bmm bf16 cublaslt", _product("bmm", BF16)),
        ("linear bf16 cublaslt", _product("linear", BF16)),
    ],
}  # fmt: skip


def cudnn_device_properties() -> str:
    """This card as cuDNN's heuristics see it, in the form that lets them be asked on a machine without it."""
    torch.zeros(1, device="cuda")
    library = ctypes.CDLL("libcudnn.so.9")
    descriptor = ctypes.c_void_p()
    device, size = ctypes.c_int32(0), ctypes.c_int64(0)
    prop_descriptor, device_id, json_form, type_int32, type_char = 38, 2700, 2702, 23, 24  # cudnn_graph.h
    status = library.cudnnBackendCreateDescriptor(prop_descriptor, ctypes.byref(descriptor))
    status |= library.cudnnBackendSetAttribute(
        descriptor, device_id, type_int32, ctypes.c_int64(1), ctypes.byref(device)
    )
    status |= library.cudnnBackendFinalize(descriptor)
    status |= library.cudnnBackendGetAttribute(
        descriptor, json_form, type_char, ctypes.c_int64(0), ctypes.byref(size), None
    )
    text = ctypes.create_string_buffer(max(1, size.value))
    status |= library.cudnnBackendGetAttribute(descriptor, json_form, type_char, size, ctypes.byref(size), text)
    return f"status {status}" if status else text.raw.decode(errors="replace").rstrip(chr(0))


def run_sequence(name: str, baseline_bytes: int) -> Iterator[dict[str, Any]]:
    """Each step once, in this (fresh) process; yields what the driver and the allocator say after it."""
    nvml = Nvml()
    if name == "cudnn device properties":
        try:
            yield {"sequence": name, "cudnn": torch.backends.cudnn.version(), "properties": cudnn_device_properties()}
        except (OSError, RuntimeError, AttributeError) as failure:
            yield {"sequence": name, "error": str(failure)[:200]}
        return
    for step, call in SEQUENCES[name]:
        error, history = "", ""
        if step == "context":
            call()
        else:
            recorded = record(call)
            error, history = recorded.error, recorded.history
        torch.cuda.synchronize()
        used = nvml.used_bytes()
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        yield {
            "sequence": name,
            "step": step,
            "nvml_used_bytes": used,
            "outside_allocator_bytes": used - baseline_bytes - reserved,
            "cuda_used_bytes": total - free,
            "cuda_total_bytes": total,
            "allocated_bytes": torch.cuda.memory_allocated(),
            "reserved_bytes": reserved,
            "processes": [used_by for pid, used_by in nvml.process_bytes()] if os.name == "posix" else [],
            "history": history,
            "error": error,
        }
