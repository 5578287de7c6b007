"""What is said when a script does not come to an end: whose failure it was, where, and what was assumed before."""

from __future__ import annotations

import importlib
import io
import linecache
import os
import sys
from importlib import metadata
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch

from tests.card.scripts import Run, notes, runner
from vramcast.card.dispatch.failures import (
    CardFailed,
    Failure,
    ScriptFailed,
    assumptions,
    explain,
    failure_of,
    is_our_failure,
    step_failed,
)
from vramcast.errors import CannotPredict

MODEL = """
import torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return runner(tmp_path)


# -- whose failure ----------------------------------------------------------------------------------------------


def test_an_error_of_our_own_code_is_ours(run: Run) -> None:
    with pytest.raises(CardFailed) as caught:
        run("""
            import torch
            from vramcast.card.values import reads
            before, reads._in_words = reads._in_words, None
            try:
                torch.nn.Linear(512, 512).cuda()(torch.rand(64, 512, device="cuda")).sum().item()
            finally:
                reads._in_words = before
        """)
    message = str(caught.value)
    assert "train.py:6: vramcast failed here, not the script: TypeError: 'NoneType' object is not callable" in message
    assert "this is a defect of vramcast, not of your code; please report what --traceback prints" in message
    assert "card/values/reads.py" in caught.value.traceback_text
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("Could not run 'aten::x' with arguments from the 'Meta' backend"),
        NotImplementedError("Cannot copy out of meta tensor; no data!"),
        RuntimeError("Tensor.item() cannot be called on meta tensors"),
        RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and meta device"),
        AssertionError("Torch not compiled with CUDA enabled"),
        RuntimeError("Found no NVIDIA driver on your system."),
        RuntimeError("CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
        RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu."),
        RuntimeError("Unexpected error from cudaGetDeviceCount()."),
        RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected"),
        RuntimeError("No CUDA GPUs are available"),
        getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: initialization error"),
        RuntimeError('fn INTERNAL ASSERT FAILED at "init.cpp":219, please report a bug to PyTorch.'),
    ],
)
def test_words_that_no_card_says(error: Exception) -> None:
    assert is_our_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x5 and 3x3)"),
        ValueError("metadata is missing"),
        KeyError("meta"),
        FileNotFoundError("data/train.bin"),
        ModuleNotFoundError("No module named 'apex'"),
        RuntimeError(
            'expect_autograd_hooks_ INTERNAL ASSERT FAILED at "/torch/csrc/distributed/c10d/reducer.cpp":1705'
        ),
    ],
)
def test_errors_of_the_script(error: Exception) -> None:
    assert not is_our_failure(error)


def test_a_card_that_is_not_there_is_the_scripts_mistake(run: Run) -> None:
    with pytest.raises(ScriptFailed, match=r"the script failed: \w+: CUDA error: invalid device ordinal") as caught:
        run("import torch\ntorch.zeros(3, device='cuda:7')\n")
    assert not isinstance(caught.value, CardFailed)
    assert "For a machine with 8 cards: `vramcast run --gpus 8 --one-process ...`" in str(caught.value)


def test_arguments_that_torch_refuses_are_the_scripts(run: Run) -> None:
    with pytest.raises(ScriptFailed, match=r"train\.py:3: the script failed: TypeError") as caught:
        run("import torch\nx = torch.zeros(3, device='cuda')\nx.to('cuda', banana=1)\n")
    assert not isinstance(caught.value, CardFailed)
    with pytest.raises(ScriptFailed, match="the script failed: TypeError") as caught:
        run("import torch\nx = torch.zeros(3, device='cuda')\ntorch.add(x, None)\n")
    assert not isinstance(caught.value, CardFailed)


@pytest.mark.parametrize(
    "line",
    [
        "np.isnan(x)",
        "range(x)",
        "x[0] = 'a'",
        "x['a']",
        "x.new('a')",
        "x.data = 3",
        "x.grad = 3",
        "f'{x:.4f}'",
        "torch.cuda.get_device_properties(9)",
    ],
)
def test_what_torch_refuses_in_our_handlers_is_the_scripts(line: str, run: Run) -> None:
    """No frame of torch is below ours there."""
    with pytest.raises(ScriptFailed, match=r"train\.py:3: the script failed: (Type|Assertion)Error") as caught:
        run(f"import torch, numpy as np\nx = torch.zeros(3, device='cuda')\n{line}\n")
    assert not isinstance(caught.value, CardFailed) and "meta" not in str(caught.value)


def test_a_package_that_is_missing_names_the_environment(run: Run) -> None:
    with pytest.raises(ScriptFailed, match=r"(?s)No module named 'no_such'.*what the script imports must be installed"):
        run("import torch\nimport no_such\n")
    with pytest.raises(ScriptFailed, match="must be installed") as caught:
        run("import torch\ntorch.ones(3, device='cuda').sum().item()\nimport no_such\n")
    assert "assumed" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            AttributeError("module 'numpy' has no attribute 'int'.\n`np.int` was ..."),
            "written for NumPy before 1.24 and",
        ),
        (AttributeError("`np.Inf` was removed in the NumPy 2.0 release."), "written for NumPy before 2.0 and"),
        (
            ValueError(
                "setting an array element with a sequence. The requested array has an inhomogeneous shape after 1 ..."
            ),
            "written for NumPy before 1.24 and",
        ),
        (TypeError("only 0-dimensional arrays can be converted to Python scalars"), "written for NumPy before 2.4 and"),
        (ValueError("The binary mode of fromstring is removed, use frombuffer"), "written for NumPy before 2.3 and"),
        (OverflowError("Python integer -1 out of bounds for uint8"), "written for NumPy before 2.0 and"),
        (ModuleNotFoundError("No module named 'torch._six'"), "written for PyTorch before 2.0 and"),
        (IndexError("invalid index of a 0-dim tensor. Use `tensor.item()` ..."), "written for PyTorch before 0.5 and"),
        (
            RuntimeError(
                "Function CompiledFunctionBackward returned an invalid gradient at index 4 - got [384] but expected "
                "shape compatible with [1, 1, 384]"
            ),
            "set TORCHINDUCTOR_MIX_ORDER_REDUCTION to 0, here and there.",
        ),
        (
            AttributeError("'_SingleProcessDataLoaderIter' object has no attribute 'next'"),
            "written for PyTorch before 1.13 and",
        ),
        (
            ImportError("cannot import name 'Nadam' from 'torch.optim.nadam' (...)", name="torch.optim.nadam"),
            f"another version of what is installed here (torch {metadata.version('torch')}), and",
        ),
        (
            AttributeError(
                "Caught AttributeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
                "AttributeError: module 'collections' has no attribute 'Mapping'"
            ),
            "another version of what is installed here (Python 3.",
        ),
        (
            RuntimeError("stft requires the return_complex parameter be given for real inputs, and will ..."),
            "written for PyTorch before 2.0 and",
        ),
        (
            UnpicklingError("Weights only load failed. ...\n (1) In PyTorch 2.6, we changed the default value"),
            "written for PyTorch before 2.6 and",
        ),
        (
            RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported. If you ..."),
            "written for PyTorch before 1.2 and",
        ),
        (
            RuntimeError("Legacy autograd function with non-static forward method is deprecated. Please use ..."),
            "written for an older PyTorch and",
        ),
        (RuntimeError("masked_fill_ only supports boolean masks, but got ..."), "written for an older PyTorch and"),
        (
            RuntimeError("view size is not compatible with input tensor's size and stride (at least one dimension ..."),
            "from sizes and strides, not from values",
        ),
        (OSError("<urlopen error [Errno -2] Name or service not known>"), "there is no network here"),
        (OSError("We couldn't connect to 'https://huggingface.co' to load the files"), "there is no network here"),
        (FileNotFoundError(2, "No such file or directory", "data/a.txt"), "needs data/a.txt, with a card too"),
        (FileNotFoundError(2, "No such file or directory", "data/a.txt"), "memory follows from shapes"),
        (RuntimeError("Dataset not found or corrupted. You can use download=True"), "memory follows from shapes"),
    ],
)
def test_what_a_card_would_refuse_too_comes_with_a_remedy(error: Exception, remedy: str) -> None:
    failure = failure_of(error)
    assert not failure.is_ours
    assert remedy in failure.remedy


@pytest.mark.parametrize(
    "line",
    [
        "assert numpy.__version__ == '0.3.2'  # version check",
        "numpy.linalg.no_such_function(3)",
        "assert_equal(3, banana=1)",
        "numpy.testing.assert_equal(3, banana=1)",
        "numpy.ndarray.no_such_method",
        "numpy.random.default_rng().no_such_method()",
        "import numpy.lib.no_such_module",
        "torch.no_grad()(assert_equal)(3, banana=1)",
    ],
)
def test_a_script_for_another_version_of_a_package_is_told_which(line: str, run: Run) -> None:
    script = "import numpy, torch\nfrom numpy.testing import assert_equal\n"
    script += f"torch.ones(3, device='cuda').sum().item()\n{line}\n"
    with pytest.raises(ScriptFailed) as caught:
        run(script)
    message = str(caught.value)
    assert f"another version of what is installed here (numpy {metadata.version('numpy')}), and would end" in message
    assert "assumed" not in message
    assert "Error: " in message


def test_a_method_of_torch_that_takes_more_than_it_did_is_of_another_version(run: Run) -> None:
    with pytest.raises(ScriptFailed, match=r"Conv2d\._conv_forward\(\) missing 1(.|\n)*another version.*\(torch "):
        run("""
            import torch
            class Quantized(torch.nn.Conv2d):
                def forward(self, x):
                    return self._conv_forward(x, self.weight.round())
            Quantized(3, 8, 3).cuda()(torch.rand(1, 3, 8, 8, device="cuda"))
        """)


def test_a_base_class_that_takes_no_argument_any_more_is_of_another_version(run: Run) -> None:
    script = """
        import yaml
        class Sampler(yaml.YAMLObject):
            def __init__(self, data):
                super().__init__(data)
        Sampler([1])
    """
    with pytest.raises(ScriptFailed, match=r"(?s)another version of what is installed here \(PyYAML"):
        run(script)
    script = script.replace("yaml.YAMLObject", "yaml.Dumper").replace("data)", "data, verbose=True)")
    with pytest.raises(ScriptFailed, match=r"(?s)argument 'verbose'.*another version of what is .* \(PyYAML"):
        run(script.replace("self, data, verbose=True)", "self, data)"))


@pytest.mark.parametrize("line", ["from collections import Iterable", "import time; time.clock()"])
def test_a_script_for_an_older_python_is_told_so(line: str, run: Run) -> None:
    with pytest.raises(ScriptFailed, match=r"(?s)another version of .* here \(Python 3\.\d+\), and would"):
        run(f"import torch\n{line}\n")


def test_the_line_of_the_module_that_failed_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("import sys\ndef build(fails):\n    return {}['x'] if fails else sys.exit(-1)\n")
    with pytest.raises(ScriptFailed, match=r"train\.py:2 \(in parts\.py:3\): the script failed: KeyError: 'x' \("):
        run("import parts, torch\nparts.build(True)\n")
    with pytest.raises(ScriptFailed, match=r"train\.py:2 \(in parts\.py:3\) ended itself after 0 .*: exit code -1$"):
        run("import parts, torch\nparts.build(False)\n")


def test_the_launchers_spelling_of_an_argument_is_told() -> None:
    ended = SystemExit(2)
    assert "torchrun" in str(explain(ended, "train.py", "0 optimizer steps", {}, ["train.py", "--local-rank=0"]))
    assert "torchrun" not in str(explain(ended, "train.py", "0 optimizer steps", {}, ["train.py", "--local_rank=0"]))


def test_an_error_that_a_framework_around_the_program_handles_is_told(run: Run) -> None:
    """hydra prints the error of the program that it runs, and exits with 1."""
    with pytest.raises(ScriptFailed) as caught:
        run("""
            import sys
            def program():
                open("/no/such/data.bin")
            try:
                program()
            except Exception as error:
                print(error)
                sys.exit(1)
        """)
    assert "train.py:4: the script failed: FileNotFoundError" in str(caught.value)
    assert "The script needs /no/such/data.bin, with a card too" in str(caught.value)


def test_an_assert_without_words_shows_its_line(run: Run) -> None:
    with pytest.raises(ScriptFailed, match=r"train\.py:3: the script failed: AssertionError: assert x == 2 \("):
        run("import torch\nx = 3\nassert x == 2\n")


def test_an_extension_that_would_be_compiled() -> None:
    failure = failure_of(RuntimeError("Error building extension 'fused_adam': [1/3] nvcc ..."))
    assert "cannot be followed beyond this line" in failure.sentence()
    assert "A CUDA extension is compiled here" in failure.remedy


_WITH_AN_EXTENSION = (
    MODEL
    + """
from torch.utils.cpp_extension import load
def kernels():
    return load(name="bias_act", sources=["bias_act.cpp", "bias_act.cu"])
"""
)


def test_a_script_that_needs_its_cuda_extension_ends_there(run: Run) -> None:
    with pytest.raises(ScriptFailed, match=r"train\.py:13: the script cannot be followed .*'bias_act'") as caught:
        run(_WITH_AN_EXTENSION + "kernels()\n")
    assert "leave it out" in str(caught.value)


def test_a_script_that_can_do_without_its_cuda_extension_goes_on(run: Run) -> None:
    from torch.utils import cpp_extension

    before = cpp_extension._jit_compile
    prediction = run(f"""{_WITH_AN_EXTENSION}
try:
    kernels()
except RuntimeError as error:
    print(error)
step(torch.randn(2, 4, device="cuda"))
""")
    (note,) = notes(prediction, "extension")
    assert note.startswith("the CUDA extension bias_act was not compiled, and is missing")
    assert cpp_extension._jit_compile is before


def test_an_extension_without_cuda_is_compiled(run: Run) -> None:
    with pytest.raises(ScriptFailed, match="no_such_file"):
        run("""
            import torch
            from torch.utils.cpp_extension import load
            load(name="plain", sources=["no_such_file.cpp"])
        """)


def test_libraries_with_kernels_of_their_own_are_named() -> None:
    error = type("CUDARuntimeError", (RuntimeError,), {"__module__": "cupy_backends.cuda.api.runtime"})
    failure = failure_of(error("cudaErrorInsufficientDriver: CUDA driver version is insufficient"))
    assert "cannot be followed beyond this line" in failure.sentence()
    assert "cupy launches kernels of its own, past PyTorch" in failure.remedy


def test_a_step_without_a_script() -> None:
    assert step_failed(ValueError("bad"), "the step", {}) == "the step failed: ValueError: bad"
    ours = step_failed(RuntimeError("cannot be called on meta tensors"), "the step", {"a.py:1": "1"})
    assert ours.startswith("vramcast failed, not the step: RuntimeError") and "a.py:1 = 1" in ours
    assert "--assume" not in ours


# -- what was assumed -------------------------------------------------------------------------------------------


def test_assumed_values_are_named_with_the_error(run: Run) -> None:
    with pytest.raises(ScriptFailed) as caught:
        run("""
            import torch
            x = torch.nn.Linear(512, 512).cuda()(torch.rand(64, 512, device="cuda"))
            first = x.sum().item()
            for _ in range(3):
                second = x.mean().item()
            assert second > 1e6, "it does not converge"
        """)
    message = str(caught.value)
    assert "train.py:7: the script failed: AssertionError: it does not converge" in message
    named = message.partition("the latest first: ")[2]
    assert named.startswith("train.py:6 = ") and "; train.py:4 = " in named
    assert "`vramcast run --assume train.py:6=VALUE`" in named


def test_what_went_wrong_in_a_worker_of_a_loader_is_told(run: Run) -> None:
    text = """
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): raise ValueError("bad sample")
        torch.rand(4, 4, device="cuda").sum().item()
        for x in torch.utils.data.DataLoader(Data(), num_workers=1): x.cuda()
    """
    with pytest.raises(ScriptFailed, match=r"py:7: the script failed: ValueError: bad sample \(Caught") as caught:
        run(text)
    assert "A worker of the data loader failed" in str(caught.value)
    assert "assumed" not in str(caught.value)


def test_a_script_that_asks_for_input_is_told_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ScriptFailed, match=r"EOFError: .*\nThe script asks for input: `echo ANSWER \| vramcast run"):
        run("size = int(input('batch size? '))")


def test_only_the_latest_assumed_values_are_named() -> None:
    text = assumptions({f"a.py:{line}": "1" for line in range(9)})
    assert "a.py:8 = 1; a.py:7 = 1; a.py:6 = 1; a.py:5 = 1; a.py:4 = 1 and 4 more." in text
    assert assumptions({}) == ""


# -- errors that the script swallows ----------------------------------------------------------------------------


def test_a_step_whose_error_is_swallowed_is_no_answer(run: Run) -> None:
    with pytest.raises(CannotPredict) as caught:
        run(
            MODEL
            + """
for i in range(4):
    try:
        step(torch.rand(2, 5, device="cuda"))
    except Exception as error:
        print("skipping a batch:", error)
"""
        )
    message = str(caught.value)
    assert message.startswith("no training step was seen: the script caught an error and ended without one. ")
    assert "train.py:6: the script failed: RuntimeError: " in message
    assert caught.value.exit_code == 3


def test_an_error_that_is_swallowed_in_another_module(run: Run, tmp_path: Path) -> None:
    (tmp_path / "swallowing_helper.py").write_text(
        "def quietly(f, *args):\n    try:\n        return f(*args)\n    except RuntimeError:\n        return None\n"
    )
    with pytest.raises(CannotPredict, match="no training step was seen"):
        run(MODEL + "from swallowing_helper import quietly\nquietly(step, torch.rand(2, 5, device='cuda'))\n")


def test_an_error_around_everything(run: Run) -> None:
    with pytest.raises(CannotPredict, match=r"no training step was seen.*train\.py:4: the script failed"):
        run("""
            import torch
            def main():
                torch.nn.Linear(4, 4).cuda()(torch.rand(2, 5, device="cuda"))
            try:
                main()
            except Exception as error:
                print(error)
        """)


def test_errors_that_are_none(run: Run) -> None:
    """A package that is not there, a file that is looked for, an evaluation: the run goes on as it was meant."""
    prediction = run("""
        import torch
        try:
            import no_such_package
        except ImportError:
            pass
        try:
            open("no-such-file")
        except FileNotFoundError:
            pass
        with torch.no_grad():
            torch.nn.Linear(4, 4).cuda()(torch.rand(2, 4, device="cuda"))
    """)
    (note,) = notes(prediction, "steps")
    assert note.startswith("the script made no optimizer step")


def test_an_evaluation_with_an_optimizer_at_hand(run: Run) -> None:
    """An error before the optimizer was made has nothing to do with its steps."""
    prediction = run(
        "try: torch\nexcept NameError: import torch\n"
        + MODEL
        + "with torch.no_grad(): model(torch.rand(2, 4, device='cuda'))\n"
    )
    (note,) = notes(prediction, "steps")
    assert note.startswith("the script made no optimizer step")


def test_one_bad_batch_does_no_harm(run: Run) -> None:
    prediction = run(
        MODEL
        + """
for i in range(9):
    try:
        step(torch.rand(2, 5 if i == 0 else 4, device="cuda"))
    except RuntimeError:
        continue
"""
    )
    assert prediction.trace is not None and prediction.trace.steps == 3


def test_an_optimizer_and_an_empty_data_set(run: Run) -> None:
    with pytest.raises(CannotPredict, match="no training step was seen: the script made an optimizer, and ended"):
        run(MODEL + "for batch in []:\n    step(batch)\n")


# -- values that are given --------------------------------------------------------------------------------------

READS = """
import torch
x = torch.nn.Linear(512, 512).cuda()(torch.rand(3, 512, device="cuda")).sum(1)
value = x.mean().item()
flags = (x > 0).tolist()
again = x[0].item()
print(value, flags, again)
"""


def give(run: Run, text: str, *assumed: str) -> list[str]:
    from vramcast.base.assumptions import parse_assumption

    return notes(run(text, assume=[parse_assumption(one) for one in assumed]), "--assume")


def test_a_value_that_is_given_is_read(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert give(run, READS, "train.py:4=3.5", "train.py:5=[true, false, 1]") == []
    assert capsys.readouterr().out.startswith("3.5 [True, False, True] ")


TRAINING = """
import torch
from torch import nn

def train(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(2304, 256))
    nn.init.normal_(model[4].weight)
    model[4].bias = nn.Parameter(torch.rand(256))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(3):
        out = model(torch.rand(16, 3, 8, 8).to(device))
        loss = (out / (out.abs().sum(-1, keepdim=True) + 1) + out).square().mean()  # gradients of `out` meet
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, model[1].running_mean.sum().item()]
"""


def test_values_are_computed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Through layers, gradients that meet, batch norm's own state and an optimizer: as on the CPU under the seed."""
    prediction = run(TRAINING + "print(*train('cuda'))", compute_values=True, steps=None)
    assert notes(prediction, "unknown value") == []
    assert len(notes(prediction, "--compute-values")) == 1
    real: dict[str, Any] = {}
    exec(TRAINING, real)
    printed = [float(word) for word in capsys.readouterr().out.split()]
    assert printed == pytest.approx(real["train"]("cpu"), rel=1e-4)


@pytest.mark.parametrize("size", [4, 512])
def test_every_way_to_read_is_given_the_same(size: int, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """What is small is worked out for real; the given value goes before that too."""
    text = """
        import torch
        x = torch.nn.Linear({0}, {0}).cuda()(torch.rand(1, {0}, device="cuda")).detach().sum()
        print(x.item(), float(x), x.cpu().numpy(), bool(x > 6), x.tolist())
        print(x.item())
    """
    assert give(run, text.format(size), "train.py:4=7.25") == []
    first, second = capsys.readouterr().out.splitlines()
    assert first == "7.25 7.25 7.25 True 7.25"
    assert second == "7.25"  # it keeps what it was given


@pytest.mark.parametrize(
    ("line", "given", "printed"),
    [
        ("print(len(x[x > 0]))", "true", "6"),
        ("print(len(x[x > 0]))", "false", "0"),
        ("print(len(x[x > 0]))", "[true, false, true, false, false, false]", "2"),
        ("print(len(x.masked_select(x > 0)))", "true", "6"),
        ("print(len((x > 0).nonzero()))", "true", "6"),
        ("print(len(torch.unique(x)))", "2.5", "1"),
        ("print(x.topk(2)[1].tolist())", "[5, 3]", "[5, 3]"),
        ("print(x.argmax().item())", "4", "4"),
        ("print(torch.equal(x, x + 1))", "true", "True"),
        ("print(torch.equal(x, x))", "false", "False"),
        ("print(x[x > 0].sum().item())", "7.5", "7.5"),  # a number is no mask: it is what item() gives
    ],
)
def test_a_mask_or_indices_can_be_given(
    line: str, given: str, printed: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error that an assumed mask leads to names its line for --assume, so it must be heard there."""
    text = f"""
        import torch
        x = torch.nn.Linear(4, 6).cuda()(torch.rand(4, device="cuda")).detach()
        {line}
    """
    assert give(run, text, f"train.py:4={given}") == []
    assert capsys.readouterr().out.strip() == printed


def test_a_line_that_reads_nothing_is_told(run: Run) -> None:
    assert give(run, READS, "train.py:3=1") == ["train.py:3 read no value of the card; lines of it that did: 4, 5, 6"]
    assert give(run, READS, "other.py:4=1") == ["other.py:4 read no value of the card"]


def test_a_list_of_another_length_is_a_mistake(run: Run) -> None:
    from vramcast.errors import UsageError

    with pytest.raises(UsageError, match=r"--assume train\.py:5: 2 values are given; the tensor .* has 3"):
        give(run, READS, "train.py:5=[1, 0]")
    swallowing = READS.replace("flags = (x > 0).tolist()", "try: flags = (x > 0).tolist()\nexcept Exception: flags = 0")
    with pytest.raises(UsageError, match="2 values are given"):
        give(run, swallowing, "train.py:5=[1, 0]")


def test_a_branch_is_chosen_with_it(run: Run) -> None:
    text = """
        import torch
        x = torch.nn.Linear(4, 1).cuda()(torch.rand(1, 4, device="cuda")).sum()
        if x.item() > 100:
            torch.zeros(1 << 22, device="cuda")
    """
    from vramcast.base.assumptions import parse_assumption

    small, large = (run(text, assume=[parse_assumption(f"train.py:4={value}")]) for value in (1, 1000))
    # Nearly 16 MiB: before torch 2.9, cuBLASLt gives its 1 MiB back.
    assert large.peak_allocated_bytes - small.peak_allocated_bytes >= 15 << 20


def test_a_package_in_the_folder_above_is_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tools", "model", "data"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "net.py").touch()
    script = os.fspath(tmp_path / "tools" / "train.py")
    monkeypatch.chdir(tmp_path)
    error = ModuleNotFoundError("No module named 'model'", name="model.net")
    told = failure_of(error, script)
    assert f"model is in {tmp_path}, which is not on" in told.remedy
    assert "`PYTHONPATH=. vramcast run ...`" in told.remedy
    assert "`vramcast run -m tools.train ...`" in told.remedy
    assert told.ends_on_a_card
    monkeypatch.chdir(tmp_path / "tools")
    assert "`PYTHONPATH=.. vramcast run ...` puts it there." in failure_of(error, script).remedy
    assert "must be installed" in failure_of(ModuleNotFoundError(name="data"), script).remedy  # it holds no code
    (tmp_path / "data" / "setup.py").touch()
    assert "must be installed" in failure_of(ModuleNotFoundError(name="data"), script).remedy, "a project, no package"


def test_a_folder_behind_an_installed_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yaml").mkdir()
    (tmp_path / "yaml" / "reader.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("yaml")
    error = ModuleNotFoundError("No module named 'yaml.mine'", name="yaml.mine")
    remedy = failure_of(error, os.fspath(tmp_path / "train.py")).remedy
    assert f"it hides {tmp_path / 'yaml'}, which has no __init__.py" in remedy


def test_a_file_that_a_package_of_the_script_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "losses").mkdir()
    (tmp_path / "losses" / "__init__.py").write_text("from .mine import Loss\n")
    monkeypatch.chdir(tmp_path)
    error = ModuleNotFoundError("No module named 'losses.mine'", name="losses.mine")
    told = failure_of(error, os.fspath(tmp_path / "train.py"))
    assert f"{tmp_path / 'losses'} has no module mine" in told.remedy
    assert told.ends_on_a_card


def test_a_module_behind_an_installed_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.path.append("core")` puts core/numpy.py behind NumPy."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "numpy.py").write_text("def fetch_dataloader(args):\n    return []\n")
    monkeypatch.chdir(tmp_path)
    for line in ("numpy.fetch_dataloader", "from numpy import fetch_dataloader"):
        with pytest.raises((AttributeError, ImportError)) as caught:
            exec(f"import numpy; {line}")
        told = failure_of(caught.value, os.fspath(tmp_path / "train.py"))
        assert f"it hides the module of that name in {tmp_path / 'core'}" in told.remedy
        assert "`PYTHONPATH=core vramcast run ...`" in told.remedy
    with pytest.raises(AttributeError) as caught:
        exec("import numpy; numpy.no_such")
    assert "numpy" in (remedy := failure_of(caught.value, os.fspath(tmp_path / "train.py")).remedy)
    assert "hides" not in remedy


def _raised_in(folder: Path, inner: str, outer: str = "import inner; inner.call()") -> BaseException:
    """What train.py raises, which calls inner.py."""
    code = {"inner.py": f"def call():\n    {inner}\n", "train.py": f"{outer}\n"}
    for name, text in code.items():
        (folder / name).write_text(text)
    sys.modules.pop("inner", None)
    linecache.clearcache()
    with pytest.raises(Exception) as caught:
        exec(compile(code["train.py"], folder / "train.py", "exec"), {"__name__": "__main__"})
    return caught.value


def test_the_line_of_another_file_of_the_user_is_named_with_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    script = os.fspath(tmp_path / "train.py")
    assert failure_of(_raised_in(tmp_path, "raise ValueError('\\x1b[1mbold\\x1b[0m')"), script) == Failure(
        "ValueError: bold", "train.py:1 (in inner.py:2)", is_ours=False
    )
    assert (
        failure_of(_raised_in(tmp_path, "import json; json.loads('{')"), script).where == "train.py:1 (in inner.py:2)"
    )


def test_arguments_that_another_version_takes_name_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker of a loader, whose error is text alone, and where the class has another name in the failing code."""
    monkeypatch.syspath_prepend(tmp_path)
    called = "from packaging.version import Version; [kind(1, 2, 3) for kind in [Version]]"
    assert "(packaging " in failure_of(_raised_in(tmp_path, called)).remedy
    error = _raised_in(
        tmp_path, "Version(1, 2, 3)", "from packaging.version import Version; import inner; inner.call()"
    )
    assert isinstance(error, NameError)
    vars(sys.modules["inner"])["Version"] = importlib.import_module("packaging.version").Version
    told = failure_of(
        TypeError(
            "Caught TypeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
            f'  File "{tmp_path}/inner.py", line 2, in call\n    Version(1, 2, 3)\n'
            "TypeError: Version.__init__() takes 2 positional arguments but 4 were given\n"
        )
    )
    assert "(packaging " in told.remedy
    assert told.ends_on_a_card


def test_cards_that_lightning_misses_are_those_of_the_option() -> None:
    told = failure_of(RuntimeError("You requested gpu: [0, 1, 2, 3]\n But your machine only has: [0]"))
    assert told.remedy == "\nFor a machine with 4 cards: `vramcast run --gpus 4 ...`."


def test_a_folder_to_write_into_is_told_from_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in ("import os; os.mkdir('logs/first/')", "open('logs/a.txt', 'w')", "torch.save({}, 'logs/a.pt')"):
        remedy = failure_of(_raised_in(tmp_path, "pass", f"import torch; {line}")).remedy
        assert remedy.endswith("`mkdir -p logs` does."), line
    assert "needs logs/a.txt" in failure_of(_raised_in(tmp_path, "pass", "open('logs/a.txt')")).remedy


def test_flash_attention_that_transformers_misses_has_a_stand_in() -> None:
    error = ImportError("`kernels` is either not installed or uses an incompatible version. Please install ...")
    assert "--with flash-attn" in failure_of(error).remedy
