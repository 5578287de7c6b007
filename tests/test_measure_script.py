"""A script run in pieces: set-up, then one optimizer step at a time. On the CPU: the pieces are the same there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vramcast.features.measure.module_peaks import module_peaks
from vramcast.features.measure.script_steps import ScriptEnded, ScriptSteps

SCRIPT = """
import sys, signal, threading
import torch

assert threading.current_thread() is threading.main_thread()
assert __name__ == "__main__"
import helper  # beside the script
log = helper.LOG
log.append(("args", sys.argv[1:]))
model = torch.nn.Linear(4, 4)
with torch.no_grad():
    model(torch.ones(1, 4))  # a check before training is part of the set-up
torch.nn.ReLU()(torch.ones(1))  # and so is a module that has nothing to train, a transform of pictures, say
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log.append("built")
try:
    for i in range(int(sys.argv[1])):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        log.append(i)
finally:
    log.append("left")
if len(sys.argv) > 2:
    raise ValueError("broken")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[object]]:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("LOG = []\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    import helper  # type: ignore[import-not-found]

    return os.fspath(tmp_path / "train.py"), helper.LOG


def test_set_up_and_steps_are_told_apart(script: tuple[str, list[object]]) -> None:
    path, log = script
    steps = ScriptSteps(path, ["100"])
    seen: list[list[object]] = []

    def measurement() -> str:
        step = steps.start()
        seen.append(list(log))
        for _ in range(3):
            step()
            seen.append(list(log))
        return "done"

    assert steps.measure(measurement) == "done"
    assert seen[0] == [("args", ["100"]), "built"]
    # A step ends inside optimizer.step(), before the script notes it.
    assert [len(entries) for entries in seen] == [2, 2, 3, 4]
    assert log[-1] == "left", "the script was unwound, its own clean-up included"
    assert log[-2] == 1, "and did not go on"


def test_a_script_that_ends_early(script: tuple[str, list[object]]) -> None:
    path, _ = script
    steps = ScriptSteps(path, ["2"])

    def measurement() -> None:
        step = steps.start()
        for _ in range(5):
            step()

    with pytest.raises(ScriptEnded, match="ended after 2 optimizer steps"):
        steps.measure(measurement)


def test_a_script_that_fails_shows_its_own_error(script: tuple[str, list[object]]) -> None:
    path, _ = script
    steps = ScriptSteps(path, ["1", "fail"])

    def measurement() -> None:
        step = steps.start()
        for _ in range(5):
            step()

    with pytest.raises(ValueError, match="broken"):
        steps.measure(measurement)


def test_a_measurement_that_fails_stops_the_script(script: tuple[str, list[object]]) -> None:
    path, log = script
    steps = ScriptSteps(path, ["100"])

    def measurement() -> None:
        steps.start()()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        steps.measure(measurement)
    assert log[-1] == "left"


def test_arguments_and_path_are_put_back(script: tuple[str, list[object]]) -> None:
    path, _ = script
    argv, import_path = list(sys.argv), list(sys.path)
    steps = ScriptSteps(path, ["3"])
    steps.measure(lambda: steps.start()())
    assert (sys.argv, sys.path) == (argv, import_path)


WITH_WORKERS = """
import torch

class Shift(torch.nn.Module):  # as the transforms of torchvision are
    def forward(self, x):
        return x + 1

class Blur(torch.nn.Conv1d):  # and some have weights
    pass

class Data(torch.utils.data.Dataset):
    shift, blur = Shift(), Blur(1, 1, 1)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.blur(self.shift(torch.ones(1, 4))).detach()[0]

if __name__ == "__main__":
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1, multiprocessing_context="fork"):
        model(batch).sum().backward()
        optimizer.step()
"""


def test_modules_in_the_workers_of_a_loader_do_not_stop_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITH_WORKERS)
    program = (
        "from vramcast.features.measure.script_steps import ScriptSteps\n"
        "steps = ScriptSteps('train.py', [])\n"
        "def measurement():\n"
        "    step = steps.start()\n"
        "    for _ in range(2):\n"
        "        step()\n"
        "    return 'done'\n"
        "print(steps.measure(measurement))\n"
    )
    told = subprocess.run(  # a process of its own, so that one that waits for ever can be ended
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert told.stdout.strip() == "done", told.stderr


def test_modules_in_a_fork_do_not_ask_the_card_for_their_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader's workers are forked, and CUDA refuses to be used in them."""
    parent = os.getpid()

    def asked() -> int:
        assert os.getpid() == parent
        return 7

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", asked)
    model = torch.nn.Linear(2, 2)

    def step() -> None:
        model(torch.ones(1, 2))
        child = os.fork()
        if not child:
            try:
                model(torch.ones(1, 2))
            except AssertionError:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    assert module_peaks(step) == {"Linear": 7}


COMPILED = """
import torch
import helper

def count(graph, inputs):
    helper.LOG.append(len([node for node in graph.graph.nodes if node.op == "call_function"]))
    return graph.forward

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
compiled = torch.compile(model, backend=count)
with torch.no_grad():
    compiled(torch.ones(2, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    compiled(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_compiled_modules_are_one_graph_while_they_are_watched(script: tuple[str, list[object]]) -> None:
    path, log = script
    Path(path).write_text(COMPILED)
    steps = ScriptSteps(path, [])

    def measurement() -> None:
        step = steps.start()
        step()
        step()

    torch._dynamo.reset()
    steps.measure(measurement)
    assert log == [3, 3]  # two products and what is between them: once without gradients, once with them
