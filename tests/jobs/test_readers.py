"""What is recognised as what, and how changes reach a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vramcast.base.access import CodeGate
from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import load_job, with_overrides
from vramcast.jobs.readers import READERS, Reading, Request, readers, recognise
from vramcast.jobs.readers.combine import read_together
from vramcast.jobs.validation import make_job
from vramcast.jobs.yaml_file import parse_yaml

FOLDERS = Path(__file__).parent / "folders"


def test_every_reader_has_what_a_reader_needs() -> None:
    for name, reader in zip(READERS, readers(), strict=True):
        assert reader.NAME, name
        assert callable(reader.recognises)
        assert callable(reader.read)
        assert not reader.recognises(Path("there/is/no/such/file.zzz")), name


@pytest.mark.parametrize("name", [path.name for path in sorted(FOLDERS.iterdir()) if (path / "config.json").is_file()])
def test_a_model_folder(name: str) -> None:
    loaded = load_job(str(FOLDERS / name))
    config = json.loads((FOLDERS / name / "config.json").read_text())
    kind = "diffusers" if "_class_name" in config else "transformers"
    assert loaded.recognised_as.startswith(f"{kind} folder (")
    assert loaded.job.name == name
    assert loaded.job.components["model"].source == kind
    assert any(note.topic == "assumed" for note in loaded.notes)


def test_headers_of_weights_are_read(tmp_path: Path) -> None:
    header = json.dumps({
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [24, 28]},
    }).encode()  # fmt: skip
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    notes = {note.topic: note.text for note in load_job(str(tmp_path)).notes}
    assert notes["weights on disk"].startswith("13 parameters in safetensors files (BF16, F32)")


def test_a_pipeline_folder() -> None:
    loaded = load_job(str(FOLDERS / "cogvideox-5b"))
    assert loaded.recognised_as == "diffusers folder (CogVideoXPipeline)"
    modes = {name: component.mode for name, component in loaded.job.components.items()}
    assert modes == {"text_encoder": "frozen", "vae": "frozen", "transformer": "trained"}


def test_what_the_user_says_is_not_assumed() -> None:
    folder = str(FOLDERS / "bert-base")
    said = load_job(folder, {"precision": "fp32"})
    assert said.job.precision.preset == "fp32"
    assert "autocast" in " ".join(note.text for note in load_job(folder).notes)
    assert "autocast" not in " ".join(note.text for note in said.notes)


def test_a_job_file_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "vramcast.yaml").write_text(
        "components:\n  model: {transformers: ./model}\n  own: {factory: 'nets.py:build'}\nsizes: {batch: 10}\n"
    )
    for argument in (tmp_path, tmp_path / "vramcast.yaml"):
        loaded = load_job(str(argument), request=Request(gate=CodeGate(allowed=True)))
        assert loaded.recognised_as == "vramcast.yaml"
        assert loaded.job.name == tmp_path.name
        assert Path(loaded.job.components["model"].transformers or "") == tmp_path / "model"
        assert loaded.job.components["own"].factory == f"{tmp_path / 'nets.py'}:build"


def test_a_yaml_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("learning_rate: 1e-4\n")
    assert recognise(path) is None


@pytest.mark.parametrize("argument", ["tests.jobs.tiny:JOB", "tests.jobs.tiny:job"])
def test_a_python_function(argument: str) -> None:
    loaded = load_job(argument, {"sizes.batch": 3})
    assert loaded.recognised_as == "Python function"
    assert loaded.job.sizes == {"batch": 3}


def test_changes_at_every_depth() -> None:
    job = make_job({"components": {"model": {"timm": "resnet50"}}, "optimizer": ["adam", "sgd"]}, "job")
    changed = with_overrides(
        job,
        {
            "components.model.freeze": ["conv1"],
            "optimizer.1.arguments.momentum": 0.9,
            "optimizer.arguments.fused": True,
            "precision": "bf16",
            "evaluation.batch": 2,
        },
    )
    assert changed.components["model"].freeze == ["conv1"]
    assert [one.arguments for one in changed.optimizer] == [{"fused": True}, {"momentum": 0.9}]
    assert changed.precision.preset == "bf16"
    assert changed.evaluation is not None
    assert job.precision.preset is None


def test_the_batch_of_one_gpu_replaces_the_global_one() -> None:
    job = make_job({"components": {"m": {"timm": "a"}}, "gpus": {"count": 2, "global_batch": 8}}, "job")
    assert with_overrides(job, {"sizes.batch": 3}).effective_sizes["batch"] == 3


def test_yaml_numbers_and_lines() -> None:
    data, lines = parse_yaml("a: 1e-4\nb:\n  - c: 2.5E+3\n  - yes\n", "x")
    assert data == {"a": 1e-4, "b": [{"c": 2500.0}, True]}
    assert lines[("b", 0, "c")] == 3


def test_an_alias_or_two_is_fine() -> None:
    data, _ = parse_yaml("a: &x {k: 1}\nb: *x\n", "x")
    assert data == {"a": {"k": 1}, "b": {"k": 1}}


def test_control_characters_are_refused() -> None:
    with pytest.raises(UsageError, match="not YAML"):
        parse_yaml("a: \x00", "x")


@pytest.mark.parametrize(
    ("option", "meant"), [("--bacth", "--batch"), ("--batchsize=4", "--batch"), ("--presicion", "--precision")]
)
def test_a_misspelt_option(option: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    from vramcast.cli.main import main

    with pytest.raises(SystemExit):
        main(["predict", str(FOLDERS / "bert-base"), option, "4"])
    assert f"did you mean {meant}" in capsys.readouterr().err


_YOLO_KEYS = (
    "resume",
    *("task", "mode", "model", "data", "imgsz", "batch", "freeze", "amp"),
    *("hsv_h", "mosaic", "multi_scale", "device", "compile"),
)


def _yolo(*words: str) -> Reading:
    return read_together(None, Request(arguments=("yolo", *words)))


@pytest.fixture
def ultralytics_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the reader looks at: the names of the networks and datasets that come with the library."""
    package = tmp_path / "site" / "ultralytics"
    for name in ("models/11/yolo11", "models/11/yolo11-seg", "models/11/yolo11-pose", "datasets/coco8"):
        file = package / "cfg" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("names: {0: person, 1: bicycle}\n")
    (package / "cfg/datasets/hands.yaml").write_text("names: {0: hand}\nkpt_shape: [21, 3]\n")
    (package / "__init__.py").write_text("")
    (package / "cfg" / "default.yaml").write_text("".join(f"{name}:\n" for name in _YOLO_KEYS))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.mark.usefixtures("ultralytics_installed")
def test_ultralytics_command_and_file(tmp_path: Path) -> None:
    words = ("detect", "train", "model=yolo11n.pt", "data=coco8.yaml", "imgsz=630", "batch=16", "freeze=10")
    reading = _yolo(*words, "amp=False", "hsv_h=0.1")
    assert reading.job.sizes == {"batch": 16, "height": 640, "boxes": 20} and reading.job.accumulation == 3
    assert reading.job.step is not None
    said = reading.job.step.arguments
    assert (said["task"], said["model"], said["classes"]) == ("detect", "yolo11n.yaml", 2)
    assert said["settings"] == {"amp": False, "freeze": 10}
    assert {note.topic: note.text for note in reading.notes}["unused keys"] == "hsv_h"
    assert set(reading.assumed) == {"sizes.boxes", "step.arguments.settings.optimizer"}
    args = tmp_path / "args.yaml"
    former = "save_hybrid: false\nhalf: false\nlabel_smoothing: 0.0\nsave_dir: runs/segment/train\n"
    said = "task: segment\nmodel: C:\\w\\yolo11s-seg.pt\nimgsz: 320\nbatch: 64\nmosaic: 1.0\nmulti_scale: 0.5\n"
    args.write_text(said + former)
    job = load_job(str(args)).job
    assert job.sizes == {"batch": 64, "height": 480, "boxes": 20} and job.accumulation == 1


@pytest.mark.usefixtures("ultralytics_installed")
def test_weights_bring_their_task_and_poses_their_keypoints() -> None:
    pose = _yolo("detect", "train", "resume", "model=yolo11n-pose.pt", "data=hands.yaml")
    assert pose.job.step is not None and pose.job.step.arguments["task"] == "pose"
    assert pose.job.step.arguments["keypoints"] == [21, 3] and pose.job.step.arguments["classes"] == 1
    own = _yolo("detect", "train", "model=yolo11n-pose.yaml").job.step
    assert own is not None and own.arguments["task"] == "detect"


@pytest.mark.usefixtures("ultralytics_installed")
def test_what_ultralytics_cannot_be_predicted_for(tmp_path: Path) -> None:
    with pytest.raises(CannotPredict, match=r"task semantic.*YOLO\('yolo11n-sem.pt'\)"):
        _yolo("train", "model=yolo11n-sem.pt")
    with pytest.raises(CannotPredict, match="mode val"):
        _yolo("val", "model=yolo11n.pt")
    with pytest.raises(UsageError, match=r"imgsize.*did you mean 'imgsz'"):
        _yolo("train", "model=yolo11n.pt", "imgsize=640")
    with pytest.raises(UsageError, match=r"model: runs/best.pt.*name the one"):
        _yolo("train", "model=runs/best.pt")
    unsupported = _yolo("train", "model=yolo11n.pt", "batch=-1", "device=0,1", "compile=True").unsupported
    assert {"sizes.batch", "gpus", "torch_compile"} == set(unsupported)
    assert "--largest" in unsupported["sizes.batch"] and "device=0 batch=8" in unsupported["gpus"]


def test_ultralytics_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install ultralytics"):
        _yolo("train", "model=yolo11n.pt")
