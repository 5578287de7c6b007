"""A mistake is one message with the file, the key and what to write; exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.base.errors import UsageError
from vramcast.cli.main import main
from vramcast.jobs.load import load_job

FOLDERS = Path(__file__).parent / "folders"
TINY = "components:\n  model: {factory: 'tests.jobs.tiny:mixer'}\n"
INPUTS = "inputs:\n  x: {shape: [batch, 64]}\n  labels: {shape: [batch], dtype: int64, below: 10}\n"


def _fails(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    assert main(["predict", "--allow-code", *argv]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert out == ""
    return err


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("componets: {}\n", ["job.yaml:1", "componets", "did you mean 'components'?"]),
        (TINY + "precison: bf16\n", ["job.yaml:3", "precison", "did you mean 'precision'?"]),
        (TINY + "precision: bf61\n", ["job.yaml:3", "precision.preset", "did you mean 'bf16'?"]),
        ("components:\n  model:\n    factry: 'a:b'\n", ["job.yaml:3", "components.model.factry", "'factory'"]),
        (TINY + "sizes: {batch: -4}\n", ["job.yaml:3", "sizes.batch", "at least 1"]),
        (TINY + "sizes: {batch: 40000000000}\n", ["job.yaml:3", "sizes.batch", "at most"]),
        (TINY + "sizes: {batch: '4'}\n", ["sizes.batch", "a whole number is needed, not '4'"]),
        (TINY + "sizes: {batch: 4.5}\n", ["sizes.batch", "a whole number is needed, not 4.5"]),
        (TINY + "sizes: 4\n", ["job.yaml:3", "sizes", "keys and values"]),
        (TINY + "accumulation: yes\n", ["accumulation", "a whole number is needed, not true"]),
        (TINY + "gpus: {count: 3, global_batch: 8}\n", ["gpus", "cannot be divided by 3"]),
        (TINY + "sizes: {batch: 4}\ngpus: {count: 2, global_batch: 8}\n", ["leave one out"]),
        (TINY + INPUTS.replace("batch, 64", "batch, 'width *'"), ["inputs.x.shape.1", "not an expression"]),
        (TINY + INPUTS.replace("batch, 64", "batch, '__import__(1)'"), ["inputs.x.shape.1", "not an expression"]),
        (TINY + INPUTS.replace("batch, 64", "batch, wdth") + "sizes: {width: 64}\n", ["inputs.x.shape", "'wdth'"]),
        (TINY + INPUTS + "sizes: {batch: 4, widht: 3}\n", ["sizes.widht", "no input's shape uses it"]),
        (TINY + INPUTS + "loss: {kind: mse, target: lables}\n", ["'lables'"]),
        (TINY + INPUTS + "optimizer: adamx\n", ["optimizer.name", "'adamx'", "did you mean"]),
        (TINY + INPUTS + "optimizer: {name: adam, arguments: {lrr: 1}}\n", ["optimizer.arguments", "lrr"]),
        (TINY + INPUTS + "target: rtx-4090x\n", ["rtx-4090x", "did you mean rtx-4090"]),
        (TINY + INPUTS + "target: {memory: lots}\n", ["'lots'", "24GiB"]),
        (TINY, ["components.model", "say it under inputs"]),
        (TINY + INPUTS.replace("batch, 64", "batch, 63"), ["components.model", "[1, 63]"]),
        (TINY.replace("mixer'", "mixr'") + INPUTS, ["mixr"]),
        (TINY.replace("tests.jobs.tiny", "tests.jobs.tinny") + INPUTS, ["cannot import tests.jobs.tinny"]),
        ("components:\n  model: {factory: 'tests.jobs.tiny:not_a_job'}\n" + INPUTS, ["a torch.nn.Module is needed"]),
        (TINY.replace("mixer'", "mixer', arguments: {dept: 3}") + INPUTS, ["dept"]),
        (TINY.replace("mixer'", "mixer', freeze: [nothing]") + INPUTS, ["freeze", "'nothing'", "names are like"]),
        (TINY.replace("mixer'", "mixer', mode: frozen") + INPUTS, ["none of them is trained"]),
        (TINY + INPUTS + "checkpointing: {scope: modules, modules: [nope]}\n", ["checkpointing", "'nope'"]),
        ("components: {}\n", ["components"]),
        ("- a\n- b\n", ["a job is a mapping"]),
        ("", ["a job is a mapping"]),
        ("components: [\n", ["job.yaml:2", "not YAML"]),
        ("components: {}\ncomponents: {}\n", ["job.yaml:2", "twice"]),
        ("components: !!python/object/apply:os.system ['true']\n", ["job.yaml:1", "not YAML"]),
        ("components: &a\n  x: *a\n", ["contains itself"]),
        (TINY + "dataset: {size: 0}\n", ["dataset.size", "at least 1"]),
    ],
)
def test_a_wrong_job_file(text: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vramcast-job.yaml"
    path.write_text(text)
    before = sorted(tmp_path.iterdir())
    err = _fails(capsys, str(path), "--gpu", "rtx-4090") if "target" not in text else _fails(capsys, str(path))
    for part in parts:
        assert part in err
    assert "vramcast-job.yaml" in err or "GPU" in err or "as a size" in err
    assert sorted(tmp_path.iterdir()) == before


def test_yaml_that_multiplies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["components: &l0 [" + ", ".join("xxxxxxxxxx") + "]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 10)]
    path = tmp_path / "job.yaml"
    path.write_text("\n".join(lines))
    assert "aliases" in _fails(capsys, str(path))


def test_yaml_that_is_deep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vramcast.yaml"
    path.write_text("components: " + "[" * 5000 + "]" * 5000)
    assert "deep" in _fails(capsys, str(path))


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file or folder: nothing.yaml" in _fails(capsys, "nothing.yaml")


def test_a_file_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert "notes.txt" in _fails(capsys, str(path))


def test_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("print()")
    assert "vramcast run" in _fails(capsys, str(tmp_path / "train.py"))


def test_damaged_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    assert "model.safetensors" in _fails(capsys, str(tmp_path))


def test_a_folder_of_pickles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    err = _fails(capsys, str(tmp_path))
    assert "pytorch_model.bin" in err
    assert "never opened" in err
    assert "config.json" in err


@pytest.mark.parametrize(("name", "text"), [("a.json", ""), ("a.yaml", "# nothing yet"), ("a.toml", "")])
def test_an_empty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert main(["check", str(tmp_path / name)]) == 2
    assert f"{name} is empty: a training config is expected" in capsys.readouterr().err


def test_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "config.json" in _fails(capsys, str(tmp_path))


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"model_type": "lama", "architectures": ["X"]}, ["config.json", "'lama'", "'llama'"]),
        ({"architectures": ["X"]}, ["config.json", "model_type"]),
        ({"model_type": "bert", "architectures": ["BertForEverything"]}, ["architectures", "BertForEverything"]),
        ({"model_type": "own", "auto_map": {"AutoModel": "m.M"}}, ["--trust-remote-code"]),
    ],
)
def test_an_unknown_architecture(
    config: dict[str, object], parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(config))
    err = _fails(capsys, str(tmp_path), "--gpu", "rtx-4090")
    for part in parts:
        assert part in err


def test_a_config_that_contradicts_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 30, "num_attention_heads": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "cannot be divided by 7" in _fails(capsys, str(tmp_path), "--gpu", "rtx-4090")


def test_a_config_with_an_absurd_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "bert", "architectures": ["BertModel"], "num_hidden_layers": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    err = _fails(capsys, str(tmp_path), "--gpu", "rtx-4090")
    assert "config.json: num_hidden_layers: 1,000,000,000 is far too large" in err


def test_an_unknown_diffusers_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("diffusers")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "NoNet2D"}))
    assert "NoNet2D" in _fails(capsys, str(tmp_path), "--gpu", "rtx-4090")


def test_a_config_that_is_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{\n'a': 1}")
    assert "config.json:2: not JSON" in _fails(capsys, str(tmp_path))


def test_a_model_that_depends_on_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "components:\n  model: {factory: 'tests.jobs.tiny:looks_at_data'}\n"
        "inputs:\n  x: {shape: [16, 8]}\nloss: model\n"
    )
    err = _fails(capsys, str(path), "--gpu", "rtx-4090")
    assert "components.model: calling it with" in err


def test_a_function_that_gives_no_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gives int" in _fails(capsys, "tests.jobs.tiny:not_a_job")
    assert "has no function" in _fails(capsys, "tests.jobs.tiny:nothing")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("components.model.mod=frozen", "did you mean 'mode'?"),
        ("sizes.batch", "KEY=VALUE"),
        ("sizes.batch.more=3", "single value"),
        ("optimizer.7.name=sgd", "no number 7"),
        ("a b=3", "names with dots"),
        ("sizes={batch", "not YAML"),
    ],
)
def test_a_wrong_change(change: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["tests.jobs.tiny:JOB", "--set", "optimizer=[adam]", "--set", change]
    assert part in _fails(capsys, *argv)


def test_what_cannot_be_predicted_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    err = _fails(
        capsys,
        "tests.jobs.tiny:JOB",
        "--set",
        "gpus={count: 2, offload_optimizer: true}",
        "--gpu",
        "rtx-4090",
        code=3,
    )
    assert "not modelled" in err


@pytest.mark.parametrize("model", [":build", ".x:build", "a..b:build"])
def test_a_model_without_a_module(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    configs = Path(__file__).parent / "configs"
    files = (str(configs / "lightning.yaml"), "--with", str(configs / "lightning_inputs.yaml"))
    assert repr(model) in _fails(capsys, *files, "--model", model, "--gpu", "rtx-4090")


def test_a_misspelt_component_of_an_option() -> None:
    folder = str(Path(__file__).parent / "configs" / "llama-tiny")
    with pytest.raises(UsageError, match="there is no component 'modle'; did you mean 'model'"):
        load_job(folder, {"components.modle.mode": "lora"})
