"""torch.compile where compiled code cannot be predicted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import vramcast
from tests.jobs.tiny import JOB
from vramcast.card.compiled import compiler
from vramcast.card.compiled.compiler import why_not
from vramcast.errors import CannotPredict
from vramcast.prediction import tracing

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler.why_not() is None:
        monkeypatch.setattr(compiler, "why_not", lambda: "compiled code needs Triton, which is not installed")
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)


@torch.compile
def compiled_before(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def compiled_inside(x: torch.Tensor) -> torch.Tensor:
    return x.cos() + 1


def _by_method(x: torch.Tensor) -> torch.Tensor:
    model = nn.Linear(8, 8).cuda()
    model.compile()
    return model(x)


def test_a_build_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if why_not() is None:
        monkeypatch.setattr(torch.version, "cuda", None)
        assert str(why_not()).startswith("compiled code needs a build of torch with CUDA")


def test_a_job_is_predicted_as_eager_code_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "why_not", compiler.why_not)
    found = vramcast.predict({**JOB, "torch_compile": True}, gpu="rtx-4090")
    (note,) = [note.text for note in found.notes if note.topic == "torch.compile"]
    assert note.startswith("model is predicted as eager code: compiled code needs")
    assert found.peak_reserved_bytes == vramcast.predict(JOB, gpu="rtx-4090").peak_reserved_bytes


@pytest.mark.parametrize(
    ("name", "call"),
    [
        pytest.param("compiled_before", lambda x: compiled_before(x), id="compiled before"),
        pytest.param(
            "compiled_inside", lambda x: torch.compile(mode="max-autotune")(compiled_inside)(x), id="function"
        ),
        pytest.param("Linear", lambda x: torch.compile(nn.Linear(8, 8).cuda())(x), id="module"),
        pytest.param("Linear", _by_method, id="Module.compile"),
    ],
)
def test_the_first_call_is_refused(name: str, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with vramcast.virtual_gpu("rtx-4090"):
        x = torch.empty(2, 8, device="cuda")
        with pytest.raises(CannotPredict, match=rf"^{name} is compiled with torch.compile: compiled code needs"):
            call(x)


def test_what_is_never_called_is_not_refused() -> None:
    with vramcast.virtual_gpu("rtx-4090"):
        torch.compile(compiled_inside)
        model = torch.compile(nn.Linear(8, 8).cuda())
        assert isinstance(model._orig_mod, nn.Linear)


def test_the_eager_backend_compiles_nothing() -> None:
    with vramcast.virtual_gpu("rtx-4090") as card:
        x = torch.empty(1000, device="cuda")
        function, model = (
            torch.compile(compiled_inside, backend="eager"),
            torch.compile(nn.Linear(8, 8).cuda(), backend="eager"),
        )
        before = card.n_blocks
        function(x)
        assert card.n_blocks - before == 2, "two kernels: nothing is fused"
        model(torch.empty(2, 8, device="cuda"))
    assert "Linear" in card.trace().modules


def test_eager_code_is_predicted_where_compiling_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with vramcast.virtual_gpu("rtx-4090") as card:
        x = torch.empty(2, 8, device="cuda")
        before = card.n_blocks
        torch.compile(compiled_inside)(x)
        assert card.n_blocks - before == 2
        torch.compile(nn.Linear(8, 8).cuda())(x)
        _by_method(x)


SCRIPT = """
import torch
from torch import nn

model = torch.compile(nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(compiler.why_not() is None, reason="compiled code is predicted with this torch")
def test_a_script_ends_with_the_version_that_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "vramcast", "run", "--gpu", "h200", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr
    assert "Linear is compiled with torch.compile: compiled code needs" in ended.stderr
    assert "Traceback" not in ended.stderr
