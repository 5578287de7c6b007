"""The HTML report in a real browser: figures to the byte, every control, nothing loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Tab
from tests.samples import transformer
from vramcast.base.language import spoken
from vramcast.cli.main import main
from vramcast.features.compare.results import saved_prediction
from vramcast.memory import Prediction, predict
from vramcast.report.documents import prediction_document
from vramcast.report.html_comparison import comparison_report
from vramcast.report.html_report import prediction_report

pytestmark = pytest.mark.browser


@pytest.fixture
def prediction() -> Prediction:
    return predict(transformer(layers=12, scale=2))


@pytest.fixture
def shown(tab: Tab, tmp_path: Path, prediction: Prediction) -> Tab:
    file = tmp_path / "report.html"
    file.write_text(prediction_report(prediction).to_html(), encoding="utf-8")
    tab.page.goto(file.as_uri())
    tab.page.wait_for_selector(".kinds table")
    return tab


def test_the_figures_are_those_of_json(shown: Tab, prediction: Prediction) -> None:
    document = prediction_document(prediction)
    parts = shown.parts(".kinds")
    assert parts.pop("total") == document["device_bytes"]
    assert parts == {name: size for name, size in document["account"]["parts"].items() if size}
    assert shown.values(".alive") and sum(shown.values(".alive")) == document["account"]["moment"]["requested_bytes"]
    assert shown.values(".summary")[0] == document["peak_reserved_bytes"]
    assert shown.page.inner_text(".verdict") == document["verdict"]


def test_the_moment_moves_and_comes_back(shown: Tab, prediction: Prediction) -> None:
    page = shown.page
    assert page.inner_text(".where").startswith("At the peak")
    page.focus(".memory input[type=range]")
    page.keyboard.press("Home")
    shown.wait("document.querySelector('.where').innerText.startsWith('At this moment')")
    assert shown.parts(".kinds")["total"] <= prediction.device_bytes
    page.click(".to-peak")
    shown.wait("document.querySelector('.where').innerText.startsWith('At the peak')")
    assert shown.parts(".kinds")["total"] == prediction.device_bytes
    box = page.locator(".memory .u-over").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 50)
    shown.wait("document.querySelector('.where').innerText.startsWith('At this moment')")


def test_filter_and_layers(shown: Tab) -> None:
    page = shown.page
    folded = page.locator(".alive tbody tr").count()
    assert "Net.layers.*" in page.inner_text(".alive")
    page.uncheck(".fold input")
    shown.wait(f"document.querySelectorAll('.alive tbody tr').length > {folded}")
    page.fill("input[type=search]", "layers.3")
    shown.wait("!document.querySelector('.alive').innerText.includes('head')")
    assert "Net.layers.3" in page.inner_text(".alive")


def test_modules_with_the_keyboard_alone(shown: Tab) -> None:
    page = shown.page
    page.focus(".icicle [tabindex='0']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "Net" in page.inner_text(".icicle > div:first-child")
    page.keyboard.press("Escape")
    assert "all modules" in page.get_attribute(".icicle > div:first-child", "data-label")


def test_themes_and_no_requests(shown: Tab) -> None:
    page = shown.page
    background = "getComputedStyle(document.body).backgroundColor"
    page.click("button.theme")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.click("button.theme")
    assert page.evaluate(background) == "rgb(13, 17, 23)"
    assert not shown.errors
    assert all(url.startswith(("file:", "data:")) for url in shown.requests) and len(shown.requests) == 1


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_is_cut_off(shown: Tab, width: int) -> None:
    shown.page.set_viewport_size({"width": width, "height": 900})
    shown.page.wait_for_timeout(200)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_table_of_a_job_is_wider_than_a_phone(tab: Tab, tmp_path: Path, lang: str) -> None:
    file = tmp_path / "job.html"
    sizes = "--arch transformer --hidden-dim 64 --num-layers 2 --batch 2 --seq 32 --gpu rtx-4090 --checkpointing all"
    assert main(["predict", *sizes.split(), "--lang", lang, "--html", str(file)]) == 0
    tab.page.set_viewport_size({"width": 390, "height": 900})
    tab.page.goto(file.as_uri())
    tab.page.wait_for_selector(".kinds table")
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
    rows = tab.page.eval_on_selector_all(".alive tbody tr", "rows => rows.map(row => row.clientWidth)")
    assert rows and max(rows) <= 390 and not tab.errors


def test_two_results(tab: Tab, tmp_path: Path) -> None:
    traces = {"small": transformer(layers=4), "large": transformer(layers=6)}
    predictions = {}
    for name, trace in traces.items():
        trace.save(tmp_path / name)
        found = saved_prediction(tmp_path / name)
        assert found is not None
        predictions[name] = found
    file = tmp_path / "both.html"
    file.write_text(comparison_report(predictions).to_html(), encoding="utf-8")
    tab.page.goto(file.as_uri())
    for number, prediction in enumerate(predictions.values()):
        place = f"article[data-result='{number}'] .kinds"
        tab.page.wait_for_selector(f"{place} table")
        assert tab.parts(place)["total"] == prediction.device_bytes
    assert not tab.errors


def test_in_chinese(tab: Tab, tmp_path: Path, prediction: Prediction) -> None:
    file = tmp_path / "report.html"
    with spoken("zh"):
        file.write_text(prediction_report(prediction).to_html(), encoding="utf-8")
    tab.page.goto(file.as_uri())
    tab.page.wait_for_selector(".kinds table")
    assert tab.parts(".kinds")["total"] == prediction.device_bytes
    assert tab.page.inner_text(".where").startswith("峰值时刻") and "保存的激活" in tab.page.inner_text(".legend")
    assert tab.page.inner_text(".to-peak") == "回到峰值"
    assert not tab.errors
