"""The command line: verbs, exit codes, and that a user's mistake is one line and never a traceback."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.samples import transformer
from tests.test_results import measurement
from vramcast import __version__
from vramcast.base.units import GIB
from vramcast.cli import main as cli
from vramcast.cli import options
from vramcast.cli.main import main, make_parser
from vramcast.errors import CannotPredict
from vramcast.gpus import find_gpu
from vramcast.memory import Prediction, predict

Golden = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def fixed_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "run.trace"
    transformer().save(path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from vramcast.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'rich', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "exit codes" in done.stdout


def test_a_reader_that_imported_torch_does_not_keep_us_from_forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch has run does: that starts threads, of which a fork has none."""
    ours, theirs = argparse.Namespace(own_process=True), argparse.Namespace(own_process=False)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setattr(options, "_n_threads", lambda: 4)
    assert (options.forks_possible(ours), options.forks_possible(theirs)) == (2, 1)
    for threads in (0, 5):
        monkeypatch.setattr(options, "_n_threads", lambda threads=threads: threads)
        assert options.forks_possible(ours) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"vramcast {__version__}\n"


def test_the_set_of_verbs_and_options_is_frozen(golden: Golden) -> None:
    """Scripts rely on these; a change here is a change of interface."""
    lines = []
    for action in make_parser()._subparsers._group_actions[0].choices.items():  # type: ignore[union-attr]
        name, parser = action
        options = [option for a in parser._actions for option in a.option_strings or [a.dest]]
        lines.append(f"{name}: {' '.join(options)}")
    golden("options", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "argv", [[], ["no-such-verb"], ["run"], ["show"], ["run", "--steps", "0", "x.py"], ["compare"]]
)
def test_bad_usage_ends_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert "usage: vramcast" in err
    assert len(err.splitlines()) == 3, "the mistake is not below a list of all options"
    assert err.splitlines()[-1].startswith("`vramcast ") and "--help`" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "--gpu", "rtx-4090", "nothing.py"], "no such script: nothing.py"),
        (["show", "nothing.trace"], "no such file"),
        (["show", "--gpu", "rtx-9999", "{trace}"], "unknown GPU 'rtx-9999'"),
        (["show", "--limit", "lots", "{trace}"], "cannot read 'lots' as a size"),
        (["show", "--allocator-conf", "max_split:1", "{trace}"], "unknown key"),
        (["show", __file__], "not a vramcast trace"),
        (["compare", "{trace}"], "at least two"),
        (["compare", "{trace}", "nothing"], "no such file"),
        (["gpus", "rtx-9999"], "unknown GPU"),
        (["measure", "--arg", "batch", "x:y"], "NAME=VALUE"),
        (["measure", "--save", "/no/such/folder/x.json", "x.py"], "cannot save"),
    ],
)
def test_mistakes_are_one_line_and_end_with_2(
    argv: list[str], message: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *(arg.format(trace=trace) for arg in argv))
    assert code == 2
    assert out == ""
    assert err.startswith("vramcast: ") and err.count("\n") == 1
    assert message in err


def test_show_says_fits_and_ends_with_0(trace: str, golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", trace)
    assert (code, err) == (0, "")
    golden("show", out)


def test_show_under_a_limit_ends_with_1(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "--limit", "1GiB", trace)
    assert code == 1
    assert out.startswith("Does not fit an RTX 4090")


def test_show_for_another_card_as_json(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "--gpu", "A100 80GB", "--json", trace)
    document = json.loads(out)
    assert code == 0
    assert document["gpu"]["id"] == "a100-80gb"
    assert document["format"] == "vramcast-prediction"


@pytest.mark.parametrize(
    ("option", "first"), [("--by=kind", "at the peak"), ("--by=module", "module"), ("--at-peak", "peak at step")]
)
def test_show_a_part(trace: str, option: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", option, trace)
    assert code == 0
    assert out.startswith(first)


def test_show_needs_no_torch(trace: str) -> None:
    code = (
        "import sys\nfrom vramcast.cli.main import main\n"
        f"code = main(['show', {trace!r}])\nsys.exit(code or ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_compare(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = tmp_path / "real.json"
    measured.write_text(json.dumps(measurement()))
    code, out, _ = run(capsys, "compare", trace, str(measured))
    assert code == 0
    assert "differences are from real (measured, NVIDIA H200)" in out
    code, out, _ = run(capsys, "compare", "--json", trace, str(measured))
    assert json.loads(out)["reference"] == "real"


def test_files_of_one_name_are_told_apart(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "b" / "run.trace"
    other.parent.mkdir()
    transformer(steps=2).save(other)
    _, out, _ = run(capsys, "compare", "--json", trace, str(other))
    assert [column["name"] for column in json.loads(out)["columns"]] == [trace, str(other)]


def test_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "gpus")
    assert code == 0 and "rtx-4090" in out
    code, out, _ = run(capsys, "gpus", "h200")
    assert code == 0 and "518.0 MiB" in out
    code, out, _ = run(capsys, "gpus", "--json", "h200")
    assert json.loads(out)["gpus"][0]["memory_mib"] == 143771


def test_could_not_predict_ends_with_3(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CannotPredict("flash_attn::fwd has no rule")

    monkeypatch.setattr("vramcast.memory.predict", fail)
    code, _, err = run(capsys, "show", trace)
    assert (code, err) == (3, "vramcast: flash_attn::fwd has no rule\n")


def test_a_defect_is_not_mistaken_for_a_verdict(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("vramcast.memory.predict", fail)
    code, _, err = run(capsys, "show", trace)
    assert code == 3
    assert "ZeroDivisionError" in err and "defect of vramcast" in err


def test_interrupt(trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vramcast.memory.predict", interrupt)
    assert run(capsys, "show", trace)[0] == 130


def test_a_closed_pipe_is_no_error(trace: str) -> None:
    command = f"'{sys.executable}' -m vramcast show '{trace}' | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    "of_the_user",
    [
        "pass",
        "threading.Thread(target=lambda: time.sleep(1000)).start()",
        "atexit.register(lambda: 1 / 0)",
        "atexit.register(sys.exit, 0)",
        "atexit.register(lambda: os._exit(0))",
        "atexit.register(time.sleep, 1000)",
    ],
    ids=["alone", "thread", "fails", "sys.exit", "os._exit", "hangs"],
)
def test_the_command_ends_with_its_verdict(trace: str, of_the_user: str) -> None:
    """Seen: it waited for the thread for ever, and a handler's exit code was taken for the verdict."""
    code = (
        f"import atexit, os, sys, threading, time; sys.argv = ['vramcast', 'show', {trace!r}, '--limit', '1KiB']; "
        f"{of_the_user}; atexit.register(print, 'at exit'); from vramcast.cli.main import entry; entry()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("Does not fit")
    assert done.stderr == "at exit\n", "beside the result, and without a traceback"


def test_measure_without_a_gpu_ends_with_2(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    command = [sys.executable, "-m", "vramcast", "measure", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "measuring needs a GPU" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_verb_explains_itself() -> None:
    for module in cli.commands():
        assert module.__doc__ and module.__doc__.splitlines()[0].endswith("."), module.__name__


class FakeRunner:
    """Stands in for the virtual GPU: these tests are about the command line around it."""

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        self.calls: list[tuple[str, list[str], dict[str, Any]]] = []

    def run_script(self, path: str, argv: list[str], **options: Any) -> Prediction:
        print("the script prints this")
        self.calls.append((path, argv, options))
        return self.prediction


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    fake = FakeRunner(predict(transformer()))
    module = ModuleType("vramcast.scripts.runner")
    module.run_script = fake.run_script  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vramcast.card", ModuleType("vramcast.card"))
    monkeypatch.setitem(sys.modules, "vramcast.scripts.runner", module)
    return fake


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("pass\n")
    return str(path)


def test_run_passes_everything_on(runner: FakeRunner, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--gpu", "a100-80gb", "--limit", "20GiB", "--steps", "2", "--allocator-conf", "expandable_segments:True"]
    code, out, _ = run(capsys, "run", *options, script, "--gpu", "its-own", "--json", "x")
    assert code == 0
    assert "Fits an RTX 4090" in out
    ((path, argv, passed),) = runner.calls
    assert (path, argv) == (script, ["--gpu", "its-own", "--json", "x"])
    assert passed["gpu"].id == "a100-80gb"
    assert (passed["limit_bytes"], passed["steps"]) == (20 * GIB, 2)
    assert passed["allocator_conf"] == "expandable_segments:True"


def test_run_takes_the_command_as_it_is_typed(
    runner: FakeRunner, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, _ = run(capsys, "run", "--gpu", "rtx-4090", "A=1", "torchrun", "--nproc-per-node", "1", script, "--steps")
    assert code == 0
    code, _, _ = run(capsys, "run", "--gpu", "rtx-4090", "-m", "pkg.train", "-m", "--json")
    assert code == 0
    code, out, _ = run(capsys, "run", "--gpu", "rtx-4090", "uv", "run", script)
    assert code == 0 and "uv run was not started" in out
    (first, argv, passed), (module, its_argv, its_own), _ = runner.calls
    assert (first, argv, passed["is_module"]) == (script, ["--steps"], False)
    assert passed["environment"]["A"] == "1" and passed["environment"]["WORLD_SIZE"] == "1"
    assert (module, its_argv, its_own["is_module"]) == ("pkg.train", ["-m", "--json"], True)
    assert its_own["environment"] == {}


def test_run_of_several_processes_runs_their_ranks(
    runner: FakeRunner, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["torchrun", "--nproc-per-node", "8", "--nnodes", "2", script]
    code, _, _ = run(capsys, "run", "--gpu", "rtx-4090", "--rank", "9", *command)
    assert code == 0
    ((_, _, passed),) = runner.calls
    said = passed["environment"]
    assert [said[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")] == ["9", "1", "1", "16"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["torchrun", "--nprocs", "2", "train.py"], "torchrun has no option --nprocs"),
        (["python", "missing.py"], "no such script: missing.py"),
        (["--assume", "train.py=3", "SCRIPT"], "--assume 'train.py=3': write it as FILE:LINE=VALUE"),
        (["--assume", "train.py:3=high", "SCRIPT"], "the value must be a number"),
    ],
)
def test_commands_and_assumptions_that_are_mistakes_end_with_2(
    words: list[str], message: str, runner: FakeRunner, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "run", *(script if word == "SCRIPT" else word for word in words))
    assert code == 2 and message in err and not runner.calls


def test_run_passes_assumptions_on(runner: FakeRunner, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "run", "--assume", "train.py:3=1.5", "--assume", "a.py:7=[1]", script)
    ((_, _, passed),) = runner.calls
    assert [(str(one), one.value) for one in passed["assume"]] == [("train.py:3", 1.5), ("a.py:7", [1])]


def test_run_as_json_leaves_only_the_document_on_stdout(
    runner: FakeRunner, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "run", "--gpu", "rtx-4090", "--json", script)
    assert code == 0
    assert json.loads(out)["fits"] is True
    assert "the script prints this" in err


def test_run_that_does_not_fit_ends_with_1(runner: FakeRunner, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    runner.prediction = predict(transformer(), capacity_bytes=GIB)
    assert run(capsys, "run", "--gpu", "rtx-4090", script)[0] == 1


def test_run_saves_a_trace_that_show_can_read(
    runner: FakeRunner, script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "kept.trace")
    run(capsys, "run", "--gpu", "rtx-4090", "--save", saved, script)
    code, out, _ = run(capsys, "show", saved)
    assert code == 0 and out.startswith("Fits an RTX 4090")


def test_run_finds_out_first_that_it_cannot_save(
    runner: FakeRunner, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "run", "--save", "/no/such/folder/x.trace", script)
    assert code == 2 and "cannot save" in err
    assert not runner.calls


@pytest.mark.parametrize(
    ("here", "remark"),
    [
        (None, "none was named and there is none here: RTX 4090 is taken"),
        ("h200", "none was named: the one in this machine, H200, is taken"),
    ],
)
def test_run_without_a_card_says_which_one_it_takes(
    here: str | None,
    remark: str,
    runner: FakeRunner,
    script: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("vramcast.gpus.detect.detect_gpu", lambda: here and find_gpu(here))
    _, out, _ = run(capsys, "run", script)
    assert remark in out
    assert runner.calls[0][2]["gpu"].id == (here or "rtx-4090")


def test_an_option_of_another_verb_is_not_offered_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "folder", "--memory", "5GiB"])
    assert "this verb has no --memory, which is for check, advise" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "--gpuu", "t4", "train.py"])
    assert "did you mean --gpu?" in capsys.readouterr().err


def test_a_misspelt_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["preidct", "x"])
    assert ended.value.code == 2
    assert "invalid choice: 'preidct'; did you mean predict?" in capsys.readouterr().err


@pytest.mark.parametrize("start", [["train.py"], ["-m", "pkg.train"], ["torchrun", "train.py"]])
def test_options_of_the_users_command_are_its_own(start: list[str]) -> None:
    """Also where several options of ours begin like them."""
    words = ["--n", "1", "--w", "--s=3", "--no"]
    parsed = make_parser().parse_args(["run", "--gpu", "h200", *start, *words])
    assert parsed.command[-len(words) :] == words
