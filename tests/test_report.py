"""What a reader sees, at a fixed width. `pytest --overwrite-golden` accepts a change that was meant."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.samples import transformer
from tests.test_results import measurement
from vramcast.base.units import GIB, MIB
from vramcast.features.compare.results import measured_result, result_of_prediction
from vramcast.features.compare.side_by_side import compare
from vramcast.gpus import find_gpu
from vramcast.memory import Prediction, predict
from vramcast.report.cards import print_card, print_cards
from vramcast.report.comparison import print_comparison
from vramcast.report.console import emit
from vramcast.report.grid import shortened_apart
from vramcast.report.measurement import print_measurement
from vramcast.report.module_rows import module_rows
from vramcast.report.terminal import print_account, print_every_module, print_prediction
from vramcast.report.wording import verdict, with_article
from vramcast.trace import Note

Golden = Callable[[str, str], None]


def text_of(render: Callable[[Console], None], width: int = 80) -> str:
    file = io.StringIO()
    emit(render, file, width)
    return file.getvalue()


def prediction_text(prediction: Prediction, width: int = 80) -> str:
    return text_of(lambda console: print_prediction(prediction, console), width)


def test_a_run_that_fits(golden: Golden) -> None:
    golden("fits", prediction_text(predict(transformer(layers=12))))


def test_a_run_that_does_not_fit(golden: Golden) -> None:
    golden("does_not_fit", prediction_text(predict(transformer(layers=12, scale=8))))


def test_another_card_with_many_notes(golden: Golden) -> None:
    prediction = predict(transformer(layers=12), gpu=find_gpu("t4"), capacity_bytes=4 * GIB)
    notes = [Note("compiled as eager", f"torch.compile in block {i}", f"model.py:{i}") for i in range(8)]
    golden("other_card", prediction_text(replace(prediction, notes=(*prediction.notes, *notes))))


@pytest.mark.parametrize("width", [40, 60, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = prediction_text(predict(transformer(layers=12)), width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_piped_output_is_plain_text() -> None:
    text = prediction_text(predict(transformer(scale=8)))
    assert not any(ord(char) < 32 and char != "\n" for char in text)
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_terminal_gets_colour() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    file = Terminal()
    prediction = predict(transformer())

    def render(console: Console) -> None:
        assert console.file is file
        print_prediction(prediction, Console(file=file, force_terminal=True, color_system="standard", width=80))

    emit(render, file)
    assert "\x1b[" in file.getvalue()


def test_a_file_that_cannot_hold_a_character_still_gets_the_report() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    emit(lambda console: print_prediction(predict(transformer(layers=12)), console), file, 80)
    file.flush()
    assert b"Fits an RTX 4090" in raw.getvalue()


def test_the_whole_tree_and_the_account(golden: Golden) -> None:
    account = predict(transformer(layers=2)).account
    golden("every_module", text_of(lambda console: print_every_module(account, console)))
    golden("account", text_of(lambda console: print_account(account, console)))


def test_module_rows_merge_layers_and_lose_nothing_at_the_top() -> None:
    modules = predict(transformer(layers=12)).account.modules
    rows = module_rows(modules)
    assert any("0 … 11" in row.label and "12 of them" in row.label for row in rows)
    assert sum(row.size_bytes for row in rows if row.depth == 0) == modules.total_bytes
    assert len(module_rows(modules, most=2)) <= 3


def test_comparison(golden: Golden) -> None:
    prediction = predict(transformer())
    results = [
        result_of_prediction("predicted", prediction, {"Net": GIB, "Net.head": GIB}),
        measured_result("measured", measurement()),
    ]
    golden("comparison", text_of(lambda console: print_comparison(compare(results), console), 100))


def test_measurement(golden: Golden) -> None:
    golden("measurement", text_of(lambda console: print_measurement(measurement(), console)))


def test_cards(golden: Golden) -> None:
    specs = [find_gpu(name) for name in ("rtx-4090", "h200", "a10g")]
    golden("cards", text_of(lambda console: print_cards(specs, console)))
    golden("card", text_of(lambda console: print_card(find_gpu("rtx-4090"), console)))


def test_verdicts() -> None:
    trace = transformer()
    assert verdict(predict(trace)) == "Fits an RTX 4090: needs 2.2 GiB of 23.5 GiB, 21.3 GiB to spare"
    small = predict(trace, gpu=find_gpu("b200"), capacity_bytes=GIB)
    assert verdict(small).startswith("Does not fit a B200: needs 2.4 GiB, 1.6 GiB usable")
    assert "needs at least 2.4 GiB" in verdict(replace(small, at_least=True))
    tight = replace(small, limit_bytes=small.device_bytes + MIB)
    assert "in larger pieces" in verdict(tight)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RTX 4090", "an RTX 4090"),
        ("A100-SXM4-80GB", "an A100-SXM4-80GB"),
        ("H200", "an H200"),
        ("B200", "a B200"),
        ("Tesla T4", "a Tesla T4"),
        ("GH200 480GB", "a GH200 480GB"),
        ("24 GiB GPU", "a 24 GiB GPU"),
        ("8 GiB GPU", "an 8 GiB GPU"),
        ("80 GiB GPU", "an 80 GiB GPU"),
    ],
)
def test_articles(name: str, expected: str) -> None:
    assert with_article(name) == expected


def test_golden_files_belong_to_tests() -> None:
    """A golden file that no test writes any more would go stale unseen."""
    source = "".join(path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    for path in Path(__file__).with_name("golden").glob("*.txt"):
        assert f'"{path.stem}"' in source, path.name


def test_names_that_differ_in_their_middle_stay_apart() -> None:
    names = [f"WideResNet.block{number}.layer.0 … 4 (5 ×)" for number in (1, 2, 3)]
    assert shortened_apart(names, 25) == [f"…block{number}.layer.0 … 4 (5 ×)" for number in (1, 2, 3)]
    clip = ["Task.module.visual.transformer.blocks.0 … 11", "Task.module.transformer.blocks.0 … 11", "(no module)"]
    assert shortened_apart(clip, 20) == ["…visual.tr…ks.0 … 11", "…transform…ks.0 … 11", "(no module)"]
    heads = [f"SSD.box_head.predictor.{kind}_headers.0 … 5 (6 ×)" for kind in ("cls", "reg")]
    assert shortened_apart([*heads, "SSD.backbone.vgg.0 … 33 (20 ×)", "Linear"], 29) == [
        "…cls_headers.0 … 5 (6 ×)", "…reg_headers.0 … 5 (6 ×)", "…backbone.vgg.0 … 33 (20 ×)", "Linear"
    ]  # fmt: skip
    assert shortened_apart(["Model.encoder.layers.10", "Linear"], 12) == ["Model.…rs.10", "Linear"]
