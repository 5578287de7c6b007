"""When a script is stopped, what is said of the rest of it, and that --whole runs it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.card.scripts import notes, runner
from vramcast.cli.main import main
from vramcast.errors import CannotPredict
from vramcast.scripts import stopping

MODEL = """
import sys, torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
"""
WEIGHTS = 4 * (1024 * 4096 + 4096 + 4096 * 1024 + 1024)

STAGES = (
    MODEL
    + """
for p in model[0].parameters():
    p.requires_grad = False
optimizer = torch.optim.AdamW(model.parameters())

@torch.no_grad()
def evaluate():
    model(torch.randn(1 << 17, 1024, device="cuda"))

def helper(values):
    for value in values:
        return value
    return None

def train(epochs=2):
    helper([1])
    for epoch in range(epochs):
        if epoch == 1:
            for p in model[0].parameters():
                p.requires_grad = True
        for step in range(4):
            model(torch.randn(4096, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        print("epoch", epoch)
        evaluate()

if __name__ == "__main__":
    train()
    print("done")
"""
)


def test_what_was_not_run_is_said_in_one_line_and_whole_runs_it(tmp_path: Path) -> None:
    run = runner(tmp_path)
    (note,) = notes(run(STAGES), "not run")
    assert note.startswith(
        "evaluate() (train.py:11), the branch at line 23 of train() (requires_grad); it may take more memory"
    )
    assert "--whole" in note and "helper" not in note
    short, whole = run(STAGES), run(STAGES, steps=None)
    assert whole.steps == 8 and notes(whole, "not run") == []
    # The hidden layer of the evaluation's batch, twice (before and after its ReLU), beside the batch.
    evaluation = (1 << 17) * (1024 + 4096 + 4096) * 4
    assert whole.peak_allocated_bytes >= evaluation > short.peak_allocated_bytes
    # All weights are trained in the end: two moments of each.
    assert whole.account.part("optimizer state") == 2 * WEIGHTS
    assert whole.time is not None and short.time is not None


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("print('done')", ""),
        ("torch.save(model.state_dict(), '/nowhere')", ""),
        ("report(model)", "the rest of train.py from line 11 (report)"),
        ("sys.stdout.write('x'); model(torch.zeros(1 << 20, 1024).cuda())", "the rest of train.py from line 11 (model"),
    ],
)
def test_what_follows_the_loop(rest: str, said: str, tmp_path: Path) -> None:
    loop = (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(100):\n"
        "    model(torch.zeros(8, 1024, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n\n\n"
    )
    found = notes(runner(tmp_path)(f"{MODEL}{loop}{rest}"), "not run")
    assert bool(found) == bool(said)
    assert not said or found[0].startswith(said)


def test_epochs_that_were_run_are_not_named(tmp_path: Path) -> None:
    assert notes(runner(tmp_path)(STAGES.replace("range(4)", "range(1)")), "not run") == []


@pytest.mark.slow
def test_evaluation_by_a_trainer_is_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    text = f"""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, i):
                return {{"input_ids": torch.arange(32), "labels": torch.arange(32)}}
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=100))
        args = TrainingArguments(
            {os.fspath(tmp_path)!r}, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=5,
            per_device_eval_batch_size=16, report_to=[], max_steps=20, save_strategy="no", disable_tqdm=True,
        )
        trainer = Trainer(model, args, train_dataset=Data(), eval_dataset=Data())
        trainer.train()
        trainer.evaluate()
    """
    (note,) = notes(runner(tmp_path)(text), "not run")
    assert "(evaluate), evaluation by the Trainer (every 5 steps, batch 16)" in note


# -- without an optimizer ---------------------------------------------------------------------------------------


def test_a_hand_written_update_is_counted_by_its_backward_passes(tmp_path: Path) -> None:
    prediction = runner(tmp_path)(
        MODEL
        + """
while True:
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p.data -= 0.1 * p.grad
            p.grad = None
"""
    )
    assert prediction.steps == stopping.BACKWARD_PASSES
    (note,) = notes(prediction, "steps")
    assert "each backward pass was counted as one" in note and notes(prediction, "not run") == []
    assert prediction.account.part("weights") == WEIGHTS and prediction.account.part("gradients") > 0


def test_gradients_without_backward(tmp_path: Path) -> None:
    text = """
        import torch
        w = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        while True:
            (gradient,) = torch.autograd.grad((torch.randn(64, 1024, device="cuda") @ w).square().mean(), w)
            w = (w - 0.1 * gradient).detach().requires_grad_()
    """
    assert runner(tmp_path)(text).steps == stopping.BACKWARD_PASSES


@pytest.mark.parametrize(
    ("optimizer", "limit", "seen"),
    [
        ("", "INFERENCE_PASSES", "this is what was seen so far"),
        (
            "torch.optim.Adam(model.parameters())",
            "FORWARD_PASSES",
            "no training was seen; an evaluation or rollout that comes before it has to be shorter",
        ),
    ],
)
def test_a_loop_of_forward_passes_ends(
    optimizer: str, limit: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "INFERENCE_PASSES", 10)
    monkeypatch.setattr(stopping, "FORWARD_PASSES", 30)
    prediction = runner(tmp_path)(
        f"{MODEL}kept = {optimizer or 'None'}\nwhile True:\n    model(torch.zeros(8, 1024, device='cuda'))\n"
    )
    (note,) = notes(prediction, "steps")
    passes = getattr(stopping, limit)
    assert note == f"stopped after {passes} forward passes in a row without an optimizer step: {seen}"


def test_an_evaluation_of_a_whole_data_set_may_come_before_the_first_step(tmp_path: Path) -> None:
    prediction = runner(tmp_path)(
        f"""{MODEL}
optimizer = torch.optim.Adam(model.parameters())
with torch.no_grad():
    for _ in range(6000):
        model[0](torch.zeros(1, 1024, device="cuda"))
for _ in range(5):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
    )
    assert prediction.steps == stopping.USUAL_STEPS
    assert not notes(prediction, "steps")


def test_layers_that_are_called_one_by_one_are_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose moves call its layers, and not the module that holds them."""
    monkeypatch.setattr(stopping, "INFERENCE_PASSES", 10)
    monkeypatch.setattr(stopping, "FORWARD_PASSES", 30)
    prediction = runner(tmp_path)(
        """
        import torch
        from torch import nn
        layers = [nn.Linear(8, 8).cuda() for _ in range(3)]
        optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()])
        for _ in range(5):
            for move in range(20):
                x = torch.zeros(1, 8, device="cuda")
                with torch.no_grad():
                    for layer in layers:
                        x = layer(x)
            layers[0](x).sum().backward()
            optimizer.step()
        """
    )
    assert prediction.steps == stopping.USUAL_STEPS
    assert not notes(prediction, "steps")


def test_modules_that_prepare_samples_on_the_host_are_no_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's transforms are modules without parameters, torchaudio's have buffers, and a loader may have no
    workers."""
    monkeypatch.setattr(stopping, "INFERENCE_PASSES", 20)
    monkeypatch.setattr(stopping, "FORWARD_PASSES", 20)
    prediction = runner(tmp_path)(
        MODEL
        + """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(1024))
    def forward(self, sample):
        return sample * self.factor
scale, pad = Scale(), nn.ZeroPad1d((512, 0))
samples = torch.stack([scale(pad(torch.zeros(512))) for _ in range(64)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    model(samples).sum().backward()
    optimizer.step()
"""
    )
    assert prediction.steps == stopping.USUAL_STEPS
    assert not notes(prediction, "steps")


def test_modules_in_a_loaders_worker_are_no_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SimCLR blurs its pictures with a module, in the processes that load them."""
    monkeypatch.setattr(stopping, "INFERENCE_PASSES", 20)
    monkeypatch.setattr(stopping, "FORWARD_PASSES", 20)
    prediction = runner(tmp_path)(
        MODEL
        + """
class Samples(torch.utils.data.Dataset):
    blur = nn.AvgPool1d(3, stride=1, padding=1)
    def __len__(self):
        return 256
    def __getitem__(self, place):
        with torch.no_grad():
            return self.blur(torch.ones(1, 1024))[0]

if __name__ == "__main__":
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in torch.utils.data.DataLoader(Samples(), batch_size=32, num_workers=1):
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert prediction.steps == 3 and not notes(prediction, "steps")


def test_an_optimizer_that_never_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "ACCUMULATED_PASSES", 10)
    prediction = runner(tmp_path)(
        f"{MODEL}optimizer = torch.optim.Adam(model.parameters())\n"
        "while True:\n    model(torch.zeros(8, 1024, device='cuda')).sum().backward()\n"
    )
    (note,) = notes(prediction, "steps")
    assert note.startswith("stopped after 10 backward passes without an optimizer step")


def test_a_loader_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "BATCHES", 10)
    text = """
        import torch
        from torch.utils.data import DataLoader, IterableDataset
        class Endless(IterableDataset):
            def __iter__(self):
                while True:
                    yield 1
        for batch in DataLoader(Endless()):
            pass
    """
    with pytest.raises(
        CannotPredict, match="stopped after 10 batches of a DataLoader without a forward pass, and nothing"
    ):
        runner(tmp_path)(text)


# -- CUDA graphs ------------------------------------------------------------------------------------------------

CAPTURE = (
    MODEL
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
for _ in range({warm_up}):
    step()
print("captures")
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    step()
"""
)


def test_a_capture_after_the_usual_steps_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(CannotPredict):  # where captures are not modelled, that is said
        runner(tmp_path)(CAPTURE.format(warm_up=11))
    assert capsys.readouterr().out == "captures\n"


def test_but_not_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner(tmp_path)(CAPTURE.format(warm_up=1000)).steps == stopping.CAPTURE_PATIENCE
    assert capsys.readouterr().out == ""


# -- the command line -------------------------------------------------------------------------------------------


def test_whole_and_steps_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--whole", "--steps", "4", os.fspath(tmp_path / "train.py")])
    assert ended.value.code == 2 and "not allowed with" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_whole_run_gives_its_verdict(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{MODEL}optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(10**9):\n"
        "    model(torch.zeros(8, 1024, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    if step == 5: print('ready', flush=True)\n"
    )
    command = [sys.executable, "-m", "vramcast", "run", "--gpu", "rtx-4090", "--json", "--whole", os.fspath(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.strip() == "ready" for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["fits"] and document["steps"] >= 5
    assert any(note["text"].startswith("interrupted after") for note in document["notes"])


INTERRUPTED = f"""{MODEL}
class Holder:
    def __del__(self):
        raise KeyboardInterrupt
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**9):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    if step == 5: Holder()
"""


def test_an_interrupt_that_meets_a_finalizer_is_not_lost(tmp_path: Path) -> None:
    """Python prints what a finalizer raises, and goes on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    try:
        prediction = runner(tmp_path)(INTERRUPTED, steps=None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert 6 <= prediction.steps < 10**6
    assert any(note.text.startswith("interrupted after") for note in prediction.notes)


# -- state that grows to a bound --------------------------------------------------------------------------------


def test_the_history_of_lbfgs_is_full(tmp_path: Path) -> None:
    prediction = runner(tmp_path)(
        MODEL
        + """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=20)
def closure():
    optimizer.zero_grad()
    loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
"""
    )
    # Twenty updates and twenty differences of gradients, the last direction and gradient, and the next one.
    assert 42 * WEIGHTS <= prediction.account.part("optimizer state") < 44 * WEIGHTS
    assert prediction.outlook is None
    assert len(notes(prediction, "LBFGS")) == 1 and "full" in notes(prediction, "LBFGS")[0]
