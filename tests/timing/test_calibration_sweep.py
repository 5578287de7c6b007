"""The cases that `vramcast calibrate` times, and the fit on what it recorded on the H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from vramcast.gpus import find_gpu
from vramcast.timing.costs.calibration import Calibration
from vramcast.timing.costs.card import Card
from vramcast.timing.costs.fitting import fit
from vramcast.timing.costs.samples import samples_from_rows

SWEEP = Path(__file__).parents[2] / "lab" / "data" / "records" / "op_times" / "h200-torch2.11.0-sweep.json.gz"


@pytest.mark.slow
def test_the_cases_run() -> None:
    """On the virtual card: each family's first ones."""
    pytest.importorskip("torch")
    import vramcast
    from vramcast.features.measure.calibration.sweep import cases

    with vramcast.virtual_gpu("h200"):
        made = cases(1 << 28)
        seen: set[str] = set()
        for case in made:
            family = case.name.split()[0]
            if family not in seen:
                seen.add(family)
                case.run()
    assert len(made) > 500
    assert {"linear", "conv", "bmm", "attention", "layer", "image", "optimizers", "indices", "lstm"} <= seen


def test_the_cases_are_the_same_everywhere() -> None:
    pytest.importorskip("torch")
    from vramcast.features.measure.calibration import dense_cases
    from vramcast.features.measure.calibration.draws import Draw

    names = [[case.name for case in dense_cases.products(Draw("products", 1 << 28), 20)] for _ in range(2)]
    assert names[0] == names[1]
    assert len(set(names[0])) == 20


@pytest.mark.skipif(not SWEEP.is_file(), reason="the records are not part of an installed package")
def test_a_sweep_makes_a_calibration(tmp_path: Path) -> None:
    swept = json.loads(gzip.decompress(SWEEP.read_bytes()))
    card = Card(find_gpu("h200"))
    kinds = fit(samples_from_rows(swept["rows"][::6], card))
    Calibration(gpu="h200", source="a sixth of the sweep", kinds=kinds, host=swept["host"]).save(tmp_path / "h200.json")
    read = Calibration.load(tmp_path / "h200.json")
    assert {"gemm-half", "gemm-f32", "conv-fwd", "elementwise-vector", "layer-norm"} <= set(read.kinds)
    assert 1e-6 < read.host["view"] < read.host["matmul-grad"] < 1e-3
