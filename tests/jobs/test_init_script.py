"""`vramcast init SCRIPT`, and jobs that name a script."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.jobs.script_outline import outline
from vramcast.jobs.validation import make_job
from vramcast.prediction.predict import as_loaded, predict
from vramcast.scripts.runner import run_script

GPT2 = Path(__file__).parents[2] / "examples" / "train_gpt2.py"

SCRIPT = """
import argparse, torch, timm
raise SystemExit("this must not run")
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-b", "--batch-size", type=int, default=24)
parser.add_argument("--img-size", type=int, default=192)
parser.add_argument("--out", required=True, help="where to")
parser.add_argument("--note", default="two\\nlines: [")
num_epochs: int = 3
GRAD_ACCUM = 4
model = timm.create_model("resnet18", num_classes=10)
tokenizer = AutoTokenizer.from_pretrained("gpt2")
model.set_grad_checkpointing()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cuda", dtype=torch.float16):
    pass
torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
"""

TRAINS = """
import sys, torch
batch = int(sys.argv[1])
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
print("not the report")
for _ in range(50):
    optimizer.zero_grad()
    model(torch.randn(batch, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


def _write(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_script_is_read_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "vramcast.yaml"
    assert main(["init", str(_write(tmp_path, SCRIPT)), "--output", str(output)]) == 0
    job = as_loaded(output, allow_code=True).job
    assert job.script is not None
    assert job.script.arguments == ["???", "--out", "???"]
    before = output.read_text()
    assert main(["init", str(tmp_path / "train.py"), "--output", str(output)]) == 2
    assert output.read_text() == before


def test_what_the_text_says_is_a_job_when_the_comment_signs_are_taken_away(tmp_path: Path) -> None:
    output = tmp_path / "vramcast.yaml"
    assert main(["init", str(_write(tmp_path, SCRIPT)), "--output", str(output)]) == 0
    suggested = output.read_text().partition("take the # away.\n#\n")[2]
    data = yaml.safe_load("\n".join(line.removeprefix("# ") for line in suggested.splitlines()))
    data["components"]["model"] = {"timm": "resnet18"}
    job = make_job(data, "suggested")
    assert job.sizes == {"batch": 24, "height": 192, "width": 192}
    assert (job.accumulation, job.gradient_clipping, job.optimizer[0].name) == (4, 0.5, "sgd")
    assert job.precision.autocast_dtype == "fp16"
    assert job.checkpointing.scope == "all"
    assert job.dataset is not None and job.dataset.epochs == 3
    assert "resnet18" in suggested and "gpt2" not in suggested


@pytest.mark.parametrize(
    ("call", "precision"),
    [
        ("TrainingArguments(bf16=True, fp16=False, per_device_train_batch_size=6)", "bf16"),
        ("Accelerator(mixed_precision='fp16')", "fp16"),
        ("torch.autocast('cuda')", "fp16"),
        ("Accelerator(mixed_precision='no')", None),
    ],
)
def test_precision(tmp_path: Path, call: str, precision: str | None) -> None:
    found = outline(_write(tmp_path, f"x = {call}\n")).first("precision")
    assert (found.value if found else None) == precision


@pytest.mark.parametrize("text", ["def f(:\n", "x = '\0'\n", "x = " + "(" * 400])
def test_what_is_no_script(tmp_path: Path, text: str) -> None:
    assert main(["init", str(_write(tmp_path, text)), "--output", str(tmp_path / "job.yaml")]) == 2
    assert main(["init", str(_write(tmp_path, "x: 1", "notes.txt")), "--output", str(tmp_path / "job.yaml")]) == 2
    assert main(["init", str(tmp_path / "absent.py"), "--output", str(tmp_path / "job.yaml")]) == 2
    assert not (tmp_path / "job.yaml").exists()


def test_a_job_of_a_script_is_what_run_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = _write(tmp_path, TRAINS)
    job = _write(tmp_path, "script: {path: train.py, arguments: [5000]}\n", "job.yaml")
    by_job = predict(job, "rtx-4090", allow_code=True)
    by_run = run_script(str(script), ["5000"], gpu="rtx-4090")
    assert by_job.peak_allocated_bytes == by_run.peak_allocated_bytes
    assert by_job.peak_reserved_bytes == by_run.peak_reserved_bytes
    assert by_job.prediction.steps == 3
    capsys.readouterr()
    assert main(["predict", str(job), "--allow-code", "--gpu", "rtx-4090"]) == 0
    out, err = capsys.readouterr()
    assert "not the report" not in out and "not the report" in err
    assert main(["predict", str(job), "--allow-code", "--gpu", "rtx-4090", "--limit", "8MiB"]) == 1


def test_a_script_says_everything_itself(tmp_path: Path) -> None:
    script = str(_write(tmp_path, TRAINS))
    with pytest.raises(UsageError, match="sizes"):
        make_job({"script": script, "sizes": {"batch": 2}}, "job")
    with pytest.raises(UsageError, match="no such script"):
        predict({"script": "absent.py"}, "rtx-4090")


def test_the_example(tmp_path: Path) -> None:
    found = outline(GPT2)
    assert {one.key: one.value for one in found.findings} == {
        "sizes.batch": "8", "sizes.sequence": "1024", "precision": "bf16", "optimizer": "adamw",
    }  # fmt: skip
