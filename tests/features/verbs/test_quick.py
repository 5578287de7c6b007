"""`vramcast check` without a job: the quick formula, its exit codes, and that nothing heavy is loaded for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.base.units import GIB
from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.gpus import state
from vramcast.gpus.survey import LocalGpu, Survey
from vramcast.quick import QuickQuestion, answer

ROOT = Path(__file__).parents[3]
SEED = ["--batch", "8", "--height", "128", "--width", "128", "--hidden_dim", "256", "--num_layers", "10"]
OVER = ["--batch", "16", "--height", "256", "--width", "256", "--hidden-dim", "512", "--num-layers", "10"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(["check", *argv])
    except SystemExit as error:  # argparse
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_formula_of_the_guide() -> None:
    """8 × 128 × 128 × 256 × 4 bytes is an eighth of a GiB a layer: the guide's 1.07 GB was eight times too much."""
    found = answer(QuickQuestion(batch=8, height=128, width=128, hidden_dim=256, layers=10, card_bytes=24 * GIB))
    assert found.layer_bytes == 8 * 128 * 128 * 256 * 4 == GIB // 8
    assert found.total_bytes == 10 * found.layer_bytes
    assert found.allowed_bytes == int(24 * GIB * 0.7)
    assert found.safe


def test_what_would_be_safe_is_safe_and_no_more() -> None:
    question = QuickQuestion(batch=16, height=256, width=256, hidden_dim=512, layers=10, card_bytes=24 * GIB)
    found = answer(question)
    assert not found.safe

    def safe(**changes: int) -> bool:
        sizes = {"batch": 16, "height": 256, "width": 256} | changes
        return answer(QuickQuestion(hidden_dim=512, layers=10, card_bytes=24 * GIB, **sizes)).safe

    assert safe(batch=found.largest_batch) and not safe(batch=found.largest_batch + 1)
    side = found.largest_side
    assert safe(height=side, width=side) and not safe(height=side + 1, width=side + 1)


def test_golden(capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    code, out, _ = run(capsys, *SEED, "--gpu_memory", "24")
    assert code == 0
    over_code, over, _ = run(capsys, *OVER, "--gpu-memory", "24")
    assert over_code == 1
    golden("quick", f"{out}\n{over}")
    assert "not a prediction" in out and "not a prediction" in over


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ([*SEED, "--gpu-memory", "24GB"], 0),
        ([*SEED, "--memory", "24GiB"], 0),
        ([*SEED, "--gpu", "rtx-4090"], 0),
        ([*SEED, "--gpu-memory", "1"], 1),
        ([*SEED, "--gpu-memory", "2", "--threshold", "0.9"], 0),
        ([*SEED, "--gpu-memory", "2", "--threshold", "0.5"], 1),
        ([*SEED, "--gpu-memory", "1", "--dtype", "bf16"], 0),
        ([*SEED, "--gpu-memory", "1", "--bytes", "2"], 0),
        (["--batch", "8", "--seq_len", "2048", "--hidden_dim", "4096", "--num_layers", "32", "--gpu_memory", "24"], 0),
        (["--batch", "8", "--seq-len", "2048", "--hidden-dim", "4096", "--num-layers", "96", "--gpu-memory", "24"], 1),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], argv: list[str], code: int) -> None:
    assert run(capsys, *argv)[0] == code


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--hidden-dim and --num-layers"),
        (["--hidden-dim", "256", "--gpu-memory", "24"], "add --num-layers"),
        ([*SEED, "--gpu-memory", "-3"], "--gpu-memory -3: write the card's memory in GiB"),
        ([*SEED, "--gpu-memory", "nan"], "--gpu-memory nan"),
        ([*SEED, "--gpu-memory", "24000"], "no card has that much"),
        ([*SEED, "--gpu-memory", "0"], "--gpu-memory 0"),
        ([*SEED, "--gpu-memory", "24", "--gpu", "t4"], "--gpu-memory and --gpu: the card is said twice"),
        ([*SEED, "--gpu-memory", "24", "--threshold", "1.5"], "threshold: a share above 0 and up to 1"),
        ([*SEED, "--gpu-memory", "24", "--threshold", "nan"], "threshold"),
        ([*SEED, "--gpu-memory", "24", "--bytes", "3"], "1, 2, 4 or 8 bytes"),
        ([*SEED, "--gpu-memory", "24", "--dtype", "fp33"], "--dtype fp33: write one of"),
        ([*SEED, "--gpu-memory", "24", "--dtype", "fp32", "--bytes", "2"], "disagree"),
        ([*SEED, "--gpu", "rtx-4091"], "did you mean"),
        ([*SEED, "--gpu-memory", "24", "--optimizer", "sgd"], "knows only sizes"),
        ([*SEED, "--gpu-memory", "24", "--batch", "-8"], "above zero"),
        ([*SEED, "--gpu-memory", "24", "--batch", "100000000"], "batch: a whole number from 1 to 10,000,000"),
        (["tests.jobs.tiny:JOB", "--hidden-dim", "3"], "belongs to the quick formula"),
        (["a.yaml", "--config", "b.yaml"], "leave one out"),
    ],
)
def test_bad_input_is_a_message(capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert said in err


def test_the_card_here_is_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    card = LocalGpu(index=0, name="NVIDIA Thing", uuid="GPU-1", total_bytes=2 * GIB, used_bytes=0, free_bytes=2 * GIB)
    monkeypatch.setattr(state, "_by_nvml", lambda: Survey(cards=(card,)))
    code, out, _ = run(capsys, *SEED)
    assert code == 0
    assert "2.00 GiB (NVIDIA Thing) × 0.7" in out
    monkeypatch.setattr(state, "_by_nvml", Survey)
    code, _, err = run(capsys, *SEED)
    assert code == 2 and "no GPU here to ask" in err
    code, _, err = run(capsys, *SEED, "--device", "3")
    assert code == 2 and "--device 3" in err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SEED, "--gpu-memory", "24", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["format"] == "vramcast-quick-check" and document["version"] == 1
    assert document["is_prediction"] is False
    assert document["total_bytes"] == 10 * GIB // 8
    assert document["question"]["hidden_dim"] == 256


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; from vramcast.cli.main import main; "
        f"code = main(['check', *{[*SEED, '--gpu-memory', '24']!r}]); "
        "assert not {'torch', 'pydantic', 'rich', 'yaml', 'numpy'} & set(sys.modules), sorted(sys.modules); "
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


_words = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.floats(allow_nan=True).map(str),
    st.sampled_from(
        ["24GB", "24 GiB", "1e3", "", "x", "²", "0x10", "١٢", "24gib", "inf", "0.7", "fp32", "rtx-4090", "t4"]
    ),
    st.text(max_size=6),
)
_options = st.sampled_from(
    ["--batch", "--height", "--width", "--hidden-dim", "--hidden_dim", "--num-layers", "--num_layers", "--seq-len",
     "--seq_len", "--gpu-memory", "--gpu_memory", "--bytes", "--dtype", "--threshold", "--gpu", "--memory", "--device"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(_options, _words), max_size=7))
def test_any_flags_give_an_answer_or_a_message(pairs: list[tuple[str, str]]) -> None:
    """Exit code 3 would be a defect; anything but SystemExit and a code, a traceback."""
    argv = ["check", "--hidden-dim", "64", "--num-layers", "4", "--json"]
    for option, word in pairs:
        argv.append(f"{option}={word}")
    try:
        code = main(argv)
    except SystemExit as error:
        code = int(error.code or 0)
    assert code in (0, 1, 2), argv


@given(
    st.integers(1, 10**4), st.integers(1, 10**4), st.integers(1, 10**4), st.integers(1, 10**4), st.integers(1, 200),
    st.sampled_from((1, 2, 4, 8)), st.floats(0.01, 1), st.integers(GIB, 200 * GIB),
)  # fmt: skip
def test_parts_and_verdict_agree(
    batch: int, height: int, width: int, hidden: int, layers: int, size: int, threshold: float, card: int
) -> None:
    found = answer(
        QuickQuestion(
            batch=batch, height=height, width=width, hidden_dim=hidden, layers=layers, element_bytes=size,
            threshold=threshold, card_bytes=card,
        )
    )  # fmt: skip
    assert found.total_bytes == found.layer_bytes * layers
    assert found.safe == (found.headroom_bytes > 0) == (found.largest_batch >= batch)


def test_a_question_names_the_bad_size() -> None:
    with pytest.raises(UsageError, match="layers: a whole number"):
        QuickQuestion(batch=1, hidden_dim=1, layers=0, card_bytes=GIB)
