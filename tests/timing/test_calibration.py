"""Calibration files, and what happens without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.gpus import all_gpus, find_gpu
from vramcast.timing.costs import Calibration, CostModel
from vramcast.timing.costs.calibration import find_calibration, own_place
from vramcast.timing.costs.curves import Curve, KindModel
from vramcast.timing.costs.fitting import Sample, fit
from vramcast.timing.costs.part import Part, feature

PRODUCT = ("aten.mm.default", "bf16(4096,1024), bf16(1024,4096)")


@pytest.fixture(autouse=True)
def no_calibration_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("VRAMCAST_CALIBRATION", raising=False)


def _calibration() -> Calibration:
    found = find_calibration("h200")
    assert found is not None
    return found


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = _calibration()
    written.save(tmp_path / "h200.json")
    read = Calibration.load(tmp_path / "h200.json")
    assert read == written
    spec = find_gpu("h200")
    assert CostModel.for_gpu(spec, read).cost(*PRODUCT) == CostModel.for_gpu(spec).cost(*PRODUCT)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"format": "vramcast-calibration/9"}', '{"format": "vramcast-calibration/1"}',
        '{"format": "vramcast-calibration/1", "gpu": "h200", "source": "", "kinds": []}',
        '{"format": "vramcast-calibration/1", "gpu": "h200", "source": "", "kinds": {"gemm": {"size": []}}}',
        '{"format": "vramcast-calibration/1", "gpu": "h200", "source": "", "kinds": {"gemm": {"size": '
        '[[2, 0], [1, 0]], "features": {}, "tags": {}}}}',
    ],
)  # fmt: skip
def test_a_broken_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"broken.json.*vramcast calibrate") as caught:
        Calibration.load(path)
    assert caught.value.exit_code == 2


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        Calibration.load(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        Calibration.load(tmp_path / "binary.json")


def test_the_users_own_file_comes_before_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = _calibration()
    place = own_place("h200")
    place.parent.mkdir(parents=True)
    Calibration(gpu="h200", source="mine", kinds=data.kinds).save(place)
    assert CostModel.for_gpu(find_gpu("h200")).source == "mine"
    named = tmp_path / "named.json"
    Calibration(gpu="h200", source="named", kinds=data.kinds).save(named)
    monkeypatch.setenv("VRAMCAST_CALIBRATION", str(named))
    assert CostModel.for_gpu(find_gpu("h200")).source == "named"
    assert not CostModel.for_gpu(find_gpu("rtx-4090")).calibrated


def test_a_calibration_of_another_card_is_refused() -> None:
    with pytest.raises(UsageError, match="of h200, not of rtx-4090"):
        CostModel.for_gpu(find_gpu("rtx-4090"), _calibration())


def test_the_option_of_the_verbs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VRAMCAST_CALIBRATION", "")
    named = tmp_path / "named.json"
    Calibration(gpu="h200", source="named on the command line", kinds=_calibration().kinds).save(named)
    (tmp_path / "train.py").write_text(
        "import torch\nlayer = torch.nn.Linear(64, 64).cuda()\noptimizer = torch.optim.SGD(layer.parameters())\n"
        "for _ in range(9):\n    layer(torch.ones(8, 64, device='cuda')).sum().backward()\n    optimizer.step()\n"
    )
    script = str(tmp_path / "train.py")
    assert main(["run", "--gpu", "h200", "--json", "--calibration", str(named), script]) == 0
    assert json.loads(capsys.readouterr().out)["time"]["source"] == "named on the command line"
    assert main(["run", "--gpu", "rtx-4090", "--calibration", str(named), script]) == 2
    assert "the calibration is of h200, not of rtx-4090" in capsys.readouterr().err
    for verb in ("predict", "whatif"):
        assert main([verb, "none.yaml", "--calibration", str(tmp_path / "none.json")]) == 2
        assert "vramcast calibrate" in capsys.readouterr().err


def test_every_card_has_costs_without_a_calibration() -> None:
    for spec in all_gpus():
        model = CostModel(spec)
        assert not model.calibrated
        assert spec.name in model.source
        product, copy = model.cost(*PRODUCT), model.cost("aten.clone.default", "f32(4096,4096)")
        assert product.device_seconds >= product.flops / model.card.rate("bf16")
        assert 0 < copy.device_seconds < 1


def test_the_fit_finds_the_curve_it_was_given() -> None:
    """A launch of 2 µs, half of the ideal rate, twice as slow for a tag, and a feature that adds."""
    truth = KindModel(
        Curve((-2.0, 0.0, 2.0, 4.0, 6.0), (3.2, 1.7, 1.2, 1.05, 1.0)),
        {"k": Curve((0.0, 6.0), (0.6, 0.0))},
        {"slow": 1.0},
    )
    samples = []
    for number in range(600):
        base = 2.0 ** (number % 9 - 2.5) * 1e-6
        tags = ("slow",) if number % 3 == 0 else ()
        part = Part("kind", base, features=(feature("k", 2.0 ** (number % 7)),), tags=tags)
        samples.append(Sample([part], truth.seconds(part)))
    found = fit(samples)["kind"]
    for sample in samples:
        assert found.seconds(sample.parts[0]) == pytest.approx(sample.seconds, rel=0.12)


def test_parts_of_one_operator_are_told_apart() -> None:
    first, second = Part("first", 1e-4), Part("second", 1e-4)
    samples = [Sample([first], 2e-4), Sample([first, second], 6e-4)] * 20
    models = fit(samples)
    assert models["first"].seconds(first) == pytest.approx(2e-4, rel=0.1)
    assert models["second"].seconds(second) == pytest.approx(4e-4, rel=0.15)


def test_calibrating_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert main(["calibrate", "--out", str(tmp_path / "x.json")]) == 2
    assert "calibrating needs a GPU" in capsys.readouterr().err
    assert main(["calibrate", "--out", str(tmp_path / "no" / "x.json")]) == 2


@pytest.mark.parametrize("argv", [["--minutes", "0"], ["--minutes", "soon"], ["--gpu-device", "-1"]])
def test_bad_options_end_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["calibrate", *argv])
    assert caught.value.code == 2


def test_the_package_says_what_it_measured() -> None:
    calibration = _calibration()
    assert "H200" in calibration.source
    assert calibration.environment["torch"].startswith("2.11")
    assert json.loads(json.dumps(calibration.kinds["gemm-half"].to_data()))["size"]
