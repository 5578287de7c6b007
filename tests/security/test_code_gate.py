"""One gate for code: what was typed passes, what a file says needs --allow-code or a yes in the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.security.audit import watching
from tests.security.hostile import CONFIG
from vramcast.base.access import CodeGate, CodePlace
from vramcast.base.sealing import Refused, sealed
from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.jobs.code_places import METHODS, PREPARATIONS, code_in, is_plain
from vramcast.jobs.load import load_job
from vramcast.jobs.readers import Request
from vramcast.jobs.validation import make_job

SRC = Path(__file__).parents[2] / "src"
MODEL = """
import pathlib, torch
pathlib.Path(__file__).with_name("ran").touch()
def build():
    return torch.nn.Linear(64, 64)
def loss(prediction):
    return prediction.mean()
def step():
    return lambda: None
class Lit(torch.nn.Linear):
    def __init__(self): super().__init__(64, 64)
    def training_step(self, batch, batch_idx): return self(batch[0]).mean()
"""
JOB = "components:\n  model: {factory: 'model.py:build', inputs: [x]}\ninputs:\n  x: {shape: [batch, 64]}\nloss: mean\n"
PLAIN = "components:\n  model: {timm: resnet10t}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


VERBS = [
    ["predict", "job.yaml"],
    ["check", "job.yaml"],
    ["advise", "job.yaml"],
    ["whatif", "job.yaml"],
    ["plan", "job.yaml"],
    ["table", "job.yaml", "--batch", "1"],
    ["explain", "job.yaml", "model"],
    ["compare", "job.yaml", "#inference"],
    ["diagnose", "train.log", "--job", "job.yaml"],
    ["watch", "--once", "--job", "job.yaml"],
]


@pytest.mark.parametrize("argv", VERBS, ids=lambda argv: argv[0])
def test_every_verb_refuses_what_a_file_names(here: Path, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train.log").write_text("step 950/8880 | 0.5 samples/s | data_time=0.1ms\n")
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "job.yaml: components.model.factory says `factory: ./model.py:build`" in said and "--allow-code" in said
    assert not (here / "ran").exists()


def test_the_flag_opens_it(here: Path) -> None:
    with watching() as done:
        assert main(["predict", "job.yaml", "--allow-code", "--gpu", "t4"]) == 0
    assert (here / "ran").exists()
    assert any("model.py" in one for one in done), "and the audit of these tests sees code that runs"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("step: {factory: 'model.py:step'}\n", "step.factory"),
        ("script: model.py\n", "script.path"),
        (PLAIN + "loss: {kind: factory, factory: 'model.py:loss'}\n", "loss.factory"),
        (PLAIN + "optimizer: {factory: 'model:build'}\n", "optimizer.factory"),
        (PLAIN + "optimizer: [adam, {factory: 'model:build'}]\n", "optimizer.1.factory"),
        ("components:\n  model: {transformers: folder, trust_remote_code: true}\n", "components.model.trust_remote"),
        ("components:\n  model: {transformers: folder, method: save_pretrained}\n", "components.model.method"),
        ("components:\n  model: {transformers: folder, method: from_pretrained}\n", "components.model.method"),
        ("components:\n  model: {transformers: folder, method: generate}\n", "components.model.method"),
        ("components:\n  model: {transformers: folder, prepare: [push_to_hub]}\n", "components.model.prepare"),
        ("components:\n  a: {timm: resnet10t}\n  b: {copy_of: a, prepare: [save]}\n", "components.b.prepare"),
    ],
)  # fmt: skip
def test_every_place_is_named(here: Path, text: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "job.yaml").write_text(text)
    before = list(sys.path)
    assert main(["predict", "job.yaml"]) == 2
    said = capsys.readouterr().err
    assert f"job.yaml: {key}" in said and "--allow-code" in said
    assert not (here / "ran").exists() and sys.path == before


@pytest.mark.parametrize(
    ("name", "text", "more", "key"),
    [
        ("fit.yaml", "trainer: {precision: 32}\nmodel: {class_path: model.Lit}\n", [], "model.class_path"),
        ("fit.yaml", "trainer: {precision: 32}\nmodel: {lr: 1}\noptimizer: {class_path: model.Lit}\n",
         ["--model", "torch.nn:Identity"], "optimizer.class_path"),
        ("kair.json", '{"netG": {"net_type": "vrt"}, "datasets": {"train": {"dataloader_batch_size": 1}}}', [],
         "netG.net_type"),
    ],
)  # fmt: skip
def test_other_tools_configs_pass_the_same_gate(
    here: Path, name: str, text: str, more: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / name).write_text(text)
    (here / "vrt.py").write_text(MODEL + "VRT = Lit\n")
    assert main(["predict", name, *more]) == 2
    said = capsys.readouterr().err
    assert f"{name}: {key} says" in said and "--allow-code" in said
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["predict", "model.py:job"],
        ["predict", "fit.yaml", "--with", "inputs.yaml", "--model", "model.py:Lit"],
        ["predict", "plain.yaml", "--set", "components.model.factory=model.py:build"],
    ],
    ids=["a function", "--model", "--set"],
)
def test_what_is_typed_passes(here: Path, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    job = {"components": {"model": {"factory": "model.py:build", "inputs": ["x"]}},
           "inputs": {"x": {"shape": ["batch", 64]}}, "loss": "mean"}  # fmt: skip
    (here / "model.py").write_text(MODEL + f"def job(): return {job!r}\n")
    (here / "fit.yaml").write_text("trainer: {precision: 32}\nmodel: {class_path: other.Lit}\n")
    (here / "inputs.yaml").write_text("inputs:\n  x: {shape: [batch, 64]}\n")
    (here / "plain.yaml").write_text("inputs:\n  x: {shape: [batch, 64]}\nloss: mean\ncomponents:\n"
                                     "  model: {factory: 'torch.nn:Identity', inputs: [x]}\n")  # fmt: skip
    assert main([*argv, "--gpu", "t4"]) == 0, capsys.readouterr().err


def test_a_typed_module_is_not_looked_for_beside_the_config(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it is installed: a file of its name in the config's folder is not what was meant."""
    folder = here / "downloaded"
    folder.mkdir()
    for name in ("colorsys", "tests", "torchvision"):
        (folder / f"{name}.py").write_text(MODEL + "def rgb_to_hsv(**_): return build()\n")
    config = {"netG": {"net_type": "x"}, "datasets": {"train": {"H_size": 8, "dataloader_batch_size": 1}}}
    (folder / "kair.json").write_text(json.dumps(config))
    assert main(["predict", "downloaded/kair.json", "--model", "colorsys:rgb_to_hsv", "--gpu", "t4"]) == 2
    assert "downloaded" not in "".join(sys.path) and not (folder / "ran").exists()
    (folder / "nets_of_mine.py").write_text(MODEL)
    main(["predict", "downloaded/kair.json", "--model", "nets_of_mine:build", "--gpu", "t4"])
    assert (folder / "ran").exists(), "one that is nowhere else is found there"


def test_python_may_name_code_and_a_file_needs_leave(here: Path) -> None:
    model = {"factory": f"{here / 'model.py'}:build", "inputs": ["x"]}
    job = {"components": {"model": model}, "inputs": {"x": {"shape": ["batch", 64]}}, "loss": "mean"}
    assert vramcast.predict(job, "t4").fits
    with pytest.raises(UsageError, match="--allow-code"):
        vramcast.predict("job.yaml", "t4")
    assert vramcast.predict("job.yaml", "t4", allow_code=True).fits


OWN_CONFIG = """
from transformers import PretrainedConfig
class MineConfig(PretrainedConfig):
    model_type = "mine"
"""
OWN_MODEL = """
import torch
from transformers import PreTrainedModel
from .configuration_mine import MineConfig
class Mine(PreTrainedModel):
    config_class = MineConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(16, 16)
        self.post_init()
    def forward(self, input_ids): return self.embed(input_ids)
"""


def test_code_in_a_model_folder_runs_when_it_is_typed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dynamic = pytest.importorskip("transformers.dynamic_module_utils")
    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(here / "modules"))
    folder = here / "own"
    folder.mkdir()
    (folder / "configuration_mine.py").write_text(OWN_CONFIG)
    (folder / "modeling_mine.py").write_text(OWN_MODEL)
    names = {"AutoConfig": "configuration_mine.MineConfig", "AutoModel": "modeling_mine.Mine"}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "mine", "architectures": ["Mine"], "auto_map": names})
    )
    text = "components:\n  model: {transformers: own, inputs: [ids]}\nloss: mean\n"
    (here / "job.yaml").write_text(text + "inputs:\n  ids: {shape: [batch], dtype: int64, below: 16}\n")
    assert main(["predict", "job.yaml", "--gpu", "t4"]) == 2
    assert "--trust-remote-code" in capsys.readouterr().err
    assert main(["predict", "job.yaml", "--gpu", "t4", "--trust-remote-code"]) == 0, capsys.readouterr().err
    (here / "job.yaml").write_text((here / "job.yaml").read_text().replace("own,", "own, trust_remote_code: true,"))
    assert main(["predict", "job.yaml", "--gpu", "t4"]) == 2
    assert main(["predict", "job.yaml", "--gpu", "t4", "--allow-code"]) == 0, capsys.readouterr().err


def test_a_scenario_passes_it_too(here: Path) -> None:
    (here / "job.yaml").write_text(PLAIN + "scenarios:\n  mine: {optimizer: {factory: 'model.py:build'}}\n")
    assert load_job("job.yaml").job.components
    with pytest.raises(UsageError, match=r"scenarios\.mine: optimizer\.factory"):
        load_job("job.yaml#mine")


def test_a_later_part_passes_it_too(here: Path) -> None:
    (here / "part.yaml").write_text("components: {}\noptimizer: {factory: 'model.py:build'}\n")
    with pytest.raises(UsageError, match=r"optimizer\.factory"):
        load_job("folder", request=Request(parts=("part.yaml",)))


def test_what_is_agreed_to_is_not_asked_twice_and_no_is_no() -> None:
    asked: list[tuple[CodePlace, ...]] = []
    place, other = CodePlace("a.factory", "factory: a:b", "f"), CodePlace("c.factory", "factory: \x1b[2Jc:d", "f")

    def ask(places: tuple[CodePlace, ...]) -> bool:
        asked.append(places)
        return place in places

    gate = CodeGate(ask=ask)
    gate.check(place)
    gate.check(place)
    assert asked == [(place,)]
    with pytest.raises(UsageError) as refused:
        gate.check(other)
    assert "\x1b" not in str(refused.value)


def _read_until(terminal: int, words: bytes | None) -> bytes:
    """Until these words, or the end of whoever writes."""
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while words is None or words not in said:
            if not select.select([terminal], [], [], 240)[0]:
                break
            said += os.read(terminal, 1000)
    return said


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 2), ("n\n", 2)])
def test_in_a_terminal_it_asks(here: Path, answer: str, code: int) -> None:
    import pty

    words = ["predict", "job.yaml", "--write-through", "--gpu", "t4"]
    program = f"import sys; from vramcast.cli.main import main; sys.exit(main({words}))"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    said = _read_until(ours, b"[y/N]")
    assert b"job.yaml: components.model.factory says `factory: ./model.py:build`" in said
    os.write(ours, answer.encode())
    _read_until(ours, None)  # so that it never waits for us
    assert child.wait(timeout=60) == code
    assert (here / "ran").exists() is (code == 0)
    os.close(ours)


def test_the_lists_name_what_jobs_use() -> None:
    part = {"transformers": "x", "method": "get_text_features", "prepare": ["enable_input_require_grads"]}
    assert code_in(make_job({"components": {"model": part}}, "job")) == ()
    assert not METHODS & PREPARATIONS
    for name in ("generate", "from_pretrained", "save_pretrained", "load_state_dict", "push_to_hub", "load_adapter",
                 "compile", "apply", "register_forward_hook", "share_memory", "__init__", "__call__"):  # fmt: skip
        assert name not in METHODS | PREPARATIONS


@pytest.mark.parametrize(
    "value", ["a/b", "a:b", "~", "\\\\host\\x", "a\nb", {"a/b": 1}, [["x", "a/b"]], object(), b"x"]
)
def test_what_is_not_plain(value: Any) -> None:
    assert not is_plain(value)


@pytest.mark.parametrize("value", [None, True, 1, 0.5, "gelu", "bicubic", [1, [2]], {"rope_type": "yarn"}, ""])
def test_what_is_plain(value: Any) -> None:
    assert is_plain(value)


def test_the_seal_refuses_whatever_is_tried(tmp_path: Path) -> None:
    import pickle
    import shutil
    import socket

    import torch

    code = tmp_path / "module.py"
    code.write_text("ran = True")
    pickled = pickle.dumps(Path.touch)
    torch.save(torch.nn.Linear(1, 1), tmp_path / "model.pt")
    (tmp_path / "config.json").write_text("{}")
    tries = [
        lambda: (tmp_path / "new").write_text("x"),
        lambda: os.open(tmp_path / "new", os.O_CREAT | os.O_WRONLY),
        lambda: (tmp_path / "new").mkdir(),
        lambda: os.remove(code),
        lambda: os.rename(code, tmp_path / "new"),
        lambda: shutil.rmtree(tmp_path),
        lambda: subprocess.run(["true"], check=False),
        lambda: os.system("true"),
        lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        lambda: pickle.loads(pickled),
        lambda: torch.load(tmp_path / "model.pt", weights_only=False),
        lambda: exec(compile(code.read_text(), str(code), "exec"), {}),
        lambda: input(),
    ]
    for attempt in tries:
        with pytest.raises(Refused, match="a config is data"), sealed():
            attempt()
    with sealed():
        assert (tmp_path / "config.json").read_text() == "{}"
        import colorsys  # noqa: F401 (the standard library can be imported)
    (tmp_path / "new").write_text("afterwards all is as before")
    assert code.exists() and subprocess.run(["true"], check=False).returncode == 0
