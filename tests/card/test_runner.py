"""A script is run as it is, stopped after a few steps, and everything it changed is put back."""

from __future__ import annotations

import os
import random
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vramcast.base.units import GIB
from vramcast.card.dispatch.failures import ScriptFailed
from vramcast.card.dispatch.unknown import UnknownKernel
from vramcast.cli.main import main
from vramcast.errors import CannotPredict, UsageError
from vramcast.features.advise.from_trace import room
from vramcast.memory import Prediction
from vramcast.scripts.runner import run_script
from vramcast.timing.iteration import last_iteration
from vramcast.trace import StepTrace
from vramcast.trace.calls import PYTHON

Write = Callable[[str], str]

TRAINING = """
import sys, torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    model(torch.randn(16, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step)
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return os.fspath(path)

    return write


def run(path: str, *argv: str, **options: Any) -> Prediction:
    return run_script(path, argv, gpu="rtx-4090", **options)


def texts(prediction: Prediction, topic: str) -> list[str]:
    return [note.text for note in prediction.notes if note.topic == topic]


PYTHON_BETWEEN_OPS = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
def sample(i):
    return i
for step in range(3):
    chosen = list(map(sample, range(5000)))
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_python_functions_between_ops_take_time(write: Write) -> None:
    busy = run(write(PYTHON_BETWEEN_OPS))
    assert busy.trace is not None and busy.trace.calls is not None
    calls = busy.trace.calls
    step = [calls.call[row] for row in last_iteration(calls)]
    called = [int(calls.arguments[call]) for call in step if calls.ops[call] == PYTHON]
    assert sum(called) in range(5000, 5060), "those of one step, and few of what the card itself calls"
    idle = run(write(PYTHON_BETWEEN_OPS.replace("5000", "0")))
    assert busy.step_seconds is not None and idle.step_seconds is not None
    assert 0.002 < busy.step_seconds - idle.step_seconds < 0.005
    assert sys.getprofile() is None


PINNED_BATCHES = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(1024, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
for batch, in DataLoader(TensorDataset(torch.zeros(4096, 1024)), batch_size=1024, pin_memory=True):
    model(batch.cuda()).sum().backward()
    optimizer.step()
"""


def test_batches_that_a_loader_pins_are_copied_at_the_rate_of_the_link(write: Write) -> None:
    pinned = run_script(write(PINNED_BATCHES), (), gpu="h200").step_seconds
    ordinary = run_script(write(PINNED_BATCHES.replace("True", "False")), (), gpu="h200").step_seconds
    assert pinned is not None and ordinary is not None
    assert 0.0001 < ordinary - pinned < 0.0008, "4 MiB"


def test_a_program_that_profiles_itself_is_left_alone(write: Write) -> None:
    profiled = "import cProfile; profile = cProfile.Profile(); profile.enable()\n" + PYTHON_BETWEEN_OPS
    trace = run(write(profiled + "profile.disable()")).trace
    assert trace is not None and trace.calls is not None and PYTHON not in trace.calls.ops
    sys.setprofile(None)


def test_it_stops_after_the_steps_asked_for(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    prediction = run(write(TRAINING), steps=4)
    assert prediction.steps == 4 and prediction.fits
    assert capsys.readouterr().out.split() == ["step", "0", "step", "1", "step", "2"], "it ends inside the fourth"
    assert isinstance(prediction.trace, StepTrace)
    assert prediction.source.endswith("train.py")
    assert texts(prediction, "steps") == []


def test_the_script_is_main(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    script = write("""
        import os, pickle, sys, torch
        from dataclasses import dataclass
        import beside
        @dataclass
        class Options:
            value: int
        assert __name__ == "__main__" and __file__ == sys.argv[0]
        assert sys.modules["__main__"].Options is Options
        assert pickle.loads(pickle.dumps(Options(1))) == Options(1)
        assert sys.path[0] == os.path.dirname(os.path.realpath(__file__))
        assert beside.VALUE == 7
        torch.zeros(1, device="cuda")
        print(sys.argv[1:], os.getcwd())
        os.chdir("/")
        os.environ["LEFT_BEHIND"] = "1"
        torch.set_default_device("cuda")
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
    """)
    monkeypatch.chdir(tmp_path)
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    run(script, "--lr", "3")
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    assert Path.cwd() == tmp_path and "LEFT_BEHIND" not in os.environ
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    assert torch.zeros(1).device.type == "cpu"
    sys.modules.pop("beside", None)


def test_the_scripts_own_handlers_let_the_end_pass(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    script = write("""
        import contextlib, torch
        note = print
        @contextlib.contextmanager
        def region():
            try:
                yield
            finally:
                note("with")
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with region():
                for _ in range(1000):
                    try:
                        model(torch.ones(2, 8, device="cuda")).sum().backward()
                        optimizer.step()
                    except Exception:
                        note("swallowed")
        finally:
            note("finally")
    """)
    assert run(script).steps == 3
    assert capsys.readouterr().out.split() == ["with", "finally"]


def test_every_optimizer_makes_its_steps(write: Write) -> None:
    script = write("""
        import torch
        first, second = (torch.nn.Linear(8, 8).cuda() for _ in range(2))
        slow, fast = (torch.optim.Adam(m.parameters()) for m in (first, second))
        for step in range(1000):
            for _ in range(4):
                second(torch.ones(2, 8, device="cuda")).sum().backward()
                fast.step()
            first(torch.ones(2, 8, device="cuda")).sum().backward()
            slow.step()
    """)
    assert run(script, steps=2).steps == 2 * 4 + 2


def test_an_optimizer_that_steps_once_is_not_waited_for(write: Write) -> None:
    script = write("""
        import torch
        model = torch.nn.Linear(8, 8).cuda()
        once, always = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)
        once.step()
        while True:
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            always.step()
    """)
    assert run(script, steps=2).steps == 1 + 2 * 50
    assert run(write(Path(script).read_text().replace("once.step()", "pass")), steps=2).steps == 2 * 10


def test_a_script_that_ends_early_is_reported_with_a_note(write: Write) -> None:
    short = TRAINING.replace("range(1000)", "range(1)")
    assert texts(run(write(short)), "steps") == ["the script ended after 1 optimizer step; 3 were asked for"]
    left = run(write(short + "sys.exit(0)\n"))
    assert texts(left, "steps") == ["the script ended after 1 optimizer step; 3 were asked for"]
    (note,) = texts(run(write("import torch\ntorch.zeros(8, device='cuda')\n")), "steps")
    assert note.startswith("the script made no optimizer step")


def test_the_scripts_own_error_names_file_and_line(write: Write) -> None:
    script = write("""
        import torch
        def helper(x):
            raise ValueError("a bad value\\nand more")
        torch.zeros(1, device="cuda")
        helper(3)
    """)
    with pytest.raises(ScriptFailed) as caught:
        run(script)
    assert caught.value.exit_code == 3
    assert "train.py:4: the script failed: ValueError: a bad value and more (" in str(caught.value)
    assert caught.value.traceback_text.startswith("Traceback (most recent call last):\n")
    assert "runner.py" not in caught.value.traceback_text
    assert "line 6, in <module>" in caught.value.traceback_text


def test_an_error_inside_a_library_names_the_scripts_line(write: Write) -> None:
    with pytest.raises(ScriptFailed, match=r"train\.py:3: the script failed: RuntimeError"):
        run(write("import torch\nmodel = torch.nn.Linear(3, 3).cuda()\nmodel(torch.ones(2, 5, device='cuda'))\n"))


def test_an_exit_code_is_an_error(write: Write) -> None:
    with pytest.raises(ScriptFailed, match="after 0 optimizer steps: exit code 2"):
        run(
            write(
                "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', required=True)\np.parse_args()"
            )
        )
    with pytest.raises(ScriptFailed, match="no data set here"):
        run(write("import sys; sys.exit('no data set here')"))
    with pytest.raises(CannotPredict, match=r"train\.py ended itself and had allocated nothing"):
        run(write("import argparse\nargparse.ArgumentParser().parse_args(['--help'])"))
    with pytest.raises(ScriptFailed, match=r"py:1: the script failed: FileNotFoundError.*; it handled that, and ended"):
        run(write("try: open('/no/such/weights.pth')\nexcept OSError as error: print(error); exit()"))


def test_what_is_not_a_script(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.py:1: not a script of Python 3\."):
        run(write("def ("))
    with pytest.raises(UsageError, match="no such script"):
        run(os.fspath(tmp_path / "missing.py"))
    with pytest.raises(CannotPredict, match=r"allocated nothing on the GPU: .* did it catch and log an error"):
        run(write("print('hello')"))


def test_out_of_memory_is_a_verdict(write: Write) -> None:
    script = write("""
        import torch
        model = torch.nn.Linear(8192, 8192).cuda()
        try:
            model(torch.randn(1 << 19, 8192, device="cuda"))
        finally:
            torch.zeros(3, device="cuda")  # clean-up after the error does not make it fit
    """)
    prediction = run(script)
    assert not prediction.fits and prediction.at_least and prediction.trace is not None
    assert prediction.out_of_memory is not None
    assert prediction.out_of_memory.at.op == "aten.addmm"
    assert prediction.out_of_memory.at.module == "Linear"
    assert prediction.out_of_memory.tried_bytes == 16 * GIB
    assert texts(prediction, "steps") == []


def test_out_of_memory_wrapped_in_another_error(write: Write) -> None:
    script = write("""
        import torch
        try:
            torch.empty(1 << 40, device="cuda")
        except RuntimeError as error:
            raise SystemExit("it does not fit: " + str(error)[:20])
    """)
    assert not run(script).fits


def test_a_caught_out_of_memory_error_is_the_scripts_business(write: Write) -> None:
    script = write("""
        import torch
        size = 1 << 40
        while True:
            try:
                torch.empty(size, dtype=torch.uint8, device="cuda")
                break
            except torch.cuda.OutOfMemoryError:
                size //= 2
        assert size == 1 << 34
        model = torch.nn.Linear(8, 8).cuda()
    """)
    assert run(script).fits


def test_a_limit_and_allocator_settings(write: Write) -> None:
    script = write("import torch\nx = torch.empty(3 << 30, dtype=torch.uint8, device='cuda')\n")
    assert run(script).fits
    assert not run(script, limit_bytes=2 * GIB).fits
    assert run(script, allocator_conf="expandable_segments:True").allocator_conf == "expandable_segments:True"


def test_an_unknown_kernel_that_the_script_swallows_is_still_an_error(write: Write) -> None:
    script = write("""
        import torch
        library = torch.library.Library("vramcast_swallow", "DEF")
        library.define("op(Tensor x) -> Tensor")
        try:
            torch.ops.vramcast_swallow.op(torch.zeros(3, device="cuda"))
        except Exception:
            pass
    """)
    with pytest.raises(UnknownKernel, match="vramcast_swallow::op"):
        run(script)


def test_a_compiled_extension_that_wants_a_real_card(write: Write) -> None:
    script = write("""
        import torch
        def kernel(x):
            raise RuntimeError("x must be a CUDA tensor")
        kernel(torch.zeros(3, device="cuda"))
    """)
    with pytest.raises(ScriptFailed, match=r"@vramcast\.rule"):
        run(script)


def test_two_scripts_in_one_process_do_not_meet(write: Write) -> None:
    first, second = run(write(TRAINING)), run(write(TRAINING))
    assert first.peak_reserved_bytes == second.peak_reserved_bytes
    assert first.account.parts == second.account.parts


def test_the_command_line(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    trace = tmp_path / "t.json.gz"
    assert main(["run", "--gpu", "rtx-4090", "--json", "--save", str(trace), write(TRAINING)]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["fits"] and document["steps"] == 3 and "step 1" in err
    assert main(["show", "--gpu", "t4", str(trace)]) == 0
    assert main(["run", "--gpu", "rtx-4090", "--limit", "1MiB", write(TRAINING)]) == 1
    capsys.readouterr()
    failing = write("import torch\nraise KeyError('x')\n")
    assert main(["run", "--gpu", "rtx-4090", failing]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["run", "--gpu", "rtx-4090", "--traceback", failing]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_batches_of_different_sizes_are_noted(write: Write) -> None:
    script = """
        import torch
        model = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for rows in {sizes}:
            model(torch.randn(rows, 512).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    assert texts(run(write(script.format(sizes=[64, 64, 64])), steps=3), "batches") == []
    with_buffer = "kept = torch.ones(512, 512).cuda()\n        for rows"
    buffered = script.replace("for rows", with_buffer).format(sizes=[64, 64, 64])
    assert texts(run(write(buffered), steps=3), "batches") == [], "what stays there is no batch"
    (text,) = texts(run(write(script.format(sizes=[64, 80, 48])), steps=3), "batches")
    assert "the largest input of a step takes 96.0 KiB to 160.0 KiB" in text


def test_weights_that_are_frozen_for_now_are_noted(write: Write) -> None:
    """As scripts freeze a backbone in their first epochs; networks that are trained in turn are not meant."""
    script = """
        import torch
        body, head = torch.nn.Linear(1024, 1024).cuda(), torch.nn.Linear(1024, 256).cuda()
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
        for step in range(5):
            body.requires_grad_({trained})
            head(body(torch.randn(8, 1024).cuda())).sum().backward()
            body.requires_grad_(False)
            optimizer.step()
            optimizer.zero_grad()
    """
    trained, frozen = (run(write(script.format(trained=trained)), steps=3) for trained in (True, False))
    assert texts(trained, "frozen weights") == []
    (text,) = texts(frozen, "frozen weights")
    assert room(trained) is not None and room(frozen) is None, "what would fit beside it is not said"
    assert text.startswith("4.0 MiB of the 5.0 MiB of weights that the optimizer holds are frozen")
    assert "it takes at least 8.0 MiB more for their gradients and optimizer state" in text


def test_a_batch_that_two_optimizers_share_is_one(write: Write) -> None:
    script = """
        import torch
        critic, maker = (torch.nn.Linear(512, 512).cuda() for _ in range(2))
        one, other = (torch.optim.AdamW(model.parameters()) for model in (critic, maker))
        for rows in {sizes}:
            critic(torch.randn(rows, 512).cuda()).sum().backward()
            one.step()
            maker(torch.randn(1, 512).cuda()).sum().backward()
            other.step()
    """
    assert texts(run(write(script.format(sizes=[64] * 5)), steps=3), "batches") == []
    (text,) = texts(run(write(script.format(sizes=[64, 64, 80, 80, 80])), steps=3), "batches")
    assert "the largest input of a step takes 128.0 KiB to 160.0 KiB" in text


def test_a_critic_that_steps_twice_before_the_others_shares_their_batch(write: Write) -> None:
    """As in StarGAN v2: of its two steps the second gets no batch of its own."""
    prediction = run(
        write("""
            import torch
            a, b = (torch.nn.Linear(64, 64).cuda() for _ in range(2))
            critic, generator = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (a, b))
            for _ in range(5):
                x = torch.rand(4096, 64).cuda()
                for label in (0.0, 1.0):
                    (a(x) - torch.tensor(label).cuda()).mean().backward()
                    critic.step()
                b(a(x)).mean().backward()
                generator.step()
                b(x).mean().backward()
                generator.step()
        """),
        steps=3,
    )
    assert texts(prediction, "batches") == []


def test_what_is_drawn_without_a_seed_is_the_same_each_time(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """And the numbers of the process around it go on as they were."""
    path = write("""
        import random, numpy, torch
        model = torch.nn.Linear(4, 4).cuda()
        print(random.random(), numpy.random.rand(), random.sample(range(100), 3))
    """)
    random.seed(7)
    expected = random.Random(7).random()
    run(path)
    first = capsys.readouterr().out
    assert random.random() == expected
    run(path)
    assert capsys.readouterr().out == first


BATCH_FINDER = """
    import torch
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in {sizes}:
        try:
            torch.ones(rows // 4, 1024, device="cuda")
            for step in range(3):
                hidden = model(torch.randn(rows, 1024, device="cuda"))
                hidden.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        except torch.OutOfMemoryError:
            hidden = None
            torch.cuda.empty_cache()
            continue
        break
"""


def test_attempts_that_were_refused_memory_are_named_and_are_not_the_figures(write: Write) -> None:
    """As batch finders halve the batch until it fits."""
    found = run(write(BATCH_FINDER.format(sizes=[1 << 20, 1 << 17])), steps=3, limit_bytes=6 * GIB)
    at_once = run(write(BATCH_FINDER.format(sizes=[1 << 17])), steps=3, limit_bytes=6 * GIB)
    assert found.fits and found.peak_allocated_bytes == at_once.peak_allocated_bytes
    assert found.account.moment.step >= 0 and found.account.device_bytes == found.device_bytes
    (text,) = texts(found, "refused")
    assert text.startswith("one attempt was refused memory")
    assert texts(at_once, "refused") == []
    assert found.touched_bytes >= found.device_bytes
