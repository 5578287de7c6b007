"""The page of `vramcast serve` in a real browser."""

from __future__ import annotations

import contextvars
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import uvicorn

from tests.browser.conftest import Tab
from tests.samples import transformer
from tests.serve.test_server import TracerHere
from vramcast.base.language import spoken
from vramcast.gpus import find_gpu
from vramcast.memory import predict as predict_trace
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import predict
from vramcast.serve.answers import Answers
from vramcast.serve.app import make_app
from vramcast.serve.sources import Sources
from vramcast.serve.state import PageState
from vramcast.serve.tracer import Stopped

pytestmark = pytest.mark.browser
FNO = "#job=example%3Afno&gpu=rtx-4090&batch=4&height=32&width=32"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Answers]]:
    sources = Sources(tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("uploads"))
    with serving(Answers(sources, TracerHere(sources))) as found:  # type: ignore[arg-type]
        yield found


@contextmanager
def serving(answers: Answers) -> Iterator[tuple[str, Answers]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = make_app(answers, frozenset({f"127.0.0.1:{port}"}))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    in_this_language = contextvars.copy_context()
    thread = threading.Thread(target=in_this_language.run, args=(server.run,), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/", answers
    server.should_exit = True
    thread.join()


@pytest.fixture
def opened(tab: Tab, served: tuple[str, Answers]) -> Tab:
    tab.page.goto(served[0] + FNO)
    wait_for(tab, "traced")
    tab.page.wait_for_selector("#pictures .kinds table", timeout=60_000)
    settled(tab)
    return tab


def settled(tab: Tab) -> None:
    """Nothing is traced any more."""
    wait_for(tab, "traced")
    tab.wait("document.querySelector('#busy').textContent === '' && document.querySelector('#stop').hidden")


def wait_for(tab: Tab, kind: str) -> None:
    tab.page.wait_for_selector(f"#verdict.verdict[data-kind='{kind}']", timeout=60_000)


def test_it_shows_what_predict_says(opened: Tab, served: tuple[str, Answers]) -> None:
    state = PageState(job="example:fno", batch=4, height=32, width=32)
    expected = predict(served[1].sources.load(state), "rtx-4090")
    assert opened.values("#figures [data-key=device_bytes]") == [expected.device_bytes]
    parts = {part.name: part.size_bytes for part in expected.account.parts if part.size_bytes}
    assert opened.parts("#parts") == parts
    drawn = opened.parts("#pictures .kinds")
    assert drawn.pop("total") == expected.device_bytes and drawn == parts
    assert not opened.errors
    assert all(url.startswith((served[0], "data:")) for url in opened.requests)


def test_a_slider_moves_the_answer_and_the_address(opened: Tab) -> None:
    page = opened.page
    before = opened.values("#figures [data-key=device_bytes]")
    page.wait_for_timeout(1500)  # a second batch is traced
    page.focus("[name=slider-batch]")
    page.keyboard.press("End")
    opened.wait(f"document.querySelector('#figures data').value > {before[0]}")
    assert "batch=512" in page.url
    assert page.input_value("[name=batch]") == "512"


def test_the_picture_follows_a_slider_that_does_not_rest(
    opened: Tab, served: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.page.wait_for_timeout(1500)  # a second batch is traced
    quick, asked = served[1].quick, []

    def slow(state: PageState, **options: bool) -> object:
        asked.append(state.batch)
        time.sleep(0.1)
        return quick(state, **options)

    monkeypatch.setattr(served[1], "quick", slow)
    shown = opened.page.evaluate(
        """async () => {
          const slider = document.querySelector('[name=slider-batch]'), shown = new Set();
          for (let i = 0; i < 90; i++) {
            slider.value = 300 + 4 * i;
            slider.dispatchEvent(new Event('input', { bubbles: true }));
            await new Promise((resolve) => requestAnimationFrame(resolve));
            shown.add(document.querySelector('#figures data').value);
          }
          return shown.size;
        }"""
    )
    assert shown > 2
    assert len(asked) < 45, "each frame asks, whether or not the answer before it has come"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu", "t4"),
        ("precision", "bf16"),
        ("optimizer", "sgd"),
        ("checkpointing", "none"),
        ("task", "inference"),
        ("allocator", "expandable_segments:True"),
        ("compile", "off"),
    ],
)
def test_every_choice_is_answered(opened: Tab, name: str, value: str) -> None:
    page = opened.page
    page.select_option(f"[name={name}]", value)
    opened.wait(f"location.hash.includes('{name}=')")
    opened.wait("!document.querySelector('#verdict').classList.contains('waiting')")
    wait_for(opened, "traced") if name not in ("gpu", "allocator", "compile") else None
    assert "fit" in page.inner_text("#verdict").lower()
    assert not opened.errors


def test_a_link_shows_the_same(opened: Tab, tab: Tab) -> None:
    page = opened.page
    page.fill("[name=limit]", "200MiB")
    opened.wait("document.querySelector('#verdict').innerText.startsWith('Does not fit')")
    link, verdict = page.url, page.inner_text("#verdict")
    page.goto("about:blank")
    page.goto(link)
    opened.wait("document.querySelector('#verdict').innerText.startsWith('Does not fit')")
    assert page.inner_text("#verdict") == verdict
    assert page.input_value("[name=limit]") == "200MiB"


class WaitingTracer(TracerHere):
    """Traces until it is told to stop."""

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
        self.began, self.stopped = threading.Event(), threading.Event()

    def trace(self, state: PageState, stop: threading.Event, progress: Callable[[str], None]) -> JobPrediction:
        self.began.set()
        if stop.wait(60):
            self.stopped.set()
        raise Stopped("stopped")


@pytest.mark.parametrize("how", ["closed", "button", "another choice"])
def test_a_stopped_tab_stops_its_work(tab: Tab, tmp_path: Path, how: str) -> None:
    sources = Sources(tmp_path, tmp_path)
    tracer = WaitingTracer(sources)
    with serving(Answers(sources, tracer)) as (address, _):  # type: ignore[arg-type]
        tab.page.goto(address + FNO)
        assert tracer.began.wait(60)
        tab.wait("!document.querySelector('#stop').hidden")
        assert "Fourier neural operator, batch 4" in tab.page.inner_text("#how")
        if how == "closed":
            tab.page.close()
        elif how == "button":
            tab.page.click("#stop")
        else:
            tab.page.select_option("[name=precision]", "bf16")
        assert tracer.stopped.wait(30)
        if how == "button":
            assert tab.page.inner_text("#how") == "stopped" and tab.page.is_hidden("#stop")
        if how != "closed":
            tab.page.close()


def test_in_chinese(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\ncomponents: {model: {factory: 'os:system'}}\n", encoding="utf-8")
    (tmp_path / "run.trace").write_bytes(b"\x1f\x8bnot a trace")
    (tmp_path / "large.trace").write_bytes(bytes(33 * 2**20))
    sources = Sources(tmp_path, tmp_path)
    with spoken("zh"), serving(Answers(sources, TracerHere(sources))) as (address, _):  # type: ignore[arg-type]
        tab.page.goto(address + FNO)
        wait_for(tab, "traced")
        assert tab.page.get_attribute("html", "lang") == "zh"
        assert "放得下" in tab.page.inner_text("#verdict") and "需要" in tab.page.inner_text("#verdict")
        tab.page.wait_for_selector("#pictures .kinds table", timeout=60_000)
        settled(tab)
        assert not re.findall(r"[A-Za-z]{3,} [a-z]{3,}", tab.page.inner_text("form label, .answer button"))
        assert not tab.errors
        for file, words in (
            ("job.yaml", "从不运行"),
            ("run.trace", "不是 vramcast 的跟踪"),
            ("large.trace", "最多可发送"),
        ):
            tab.page.set_input_files("#upload", str(tmp_path / file))
            tab.wait(f"document.querySelector('#verdict').innerText.includes('{words}')")
            assert tab.page.is_hidden("#copy-command"), "it would copy the command of another job"


def test_keyboard_alone(opened: Tab) -> None:
    """Tab goes through every control in the order of the page; keys change them; Enter copies."""
    page = opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    names = page.evaluate("[...document.querySelectorAll('#controls [name]:enabled')].map((one) => one.name)")
    page.focus("button.theme")
    reached = []
    for _ in range(len(names) + 1):  # and the file
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.name || document.activeElement.id"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"nobody sees where the keyboard is: {reached[-1]}"
    assert reached == [names[0], "upload", *names[1:]]
    page.focus("[name=gpu]")
    page.keyboard.type("Tesla T4")
    opened.wait("location.hash.includes('gpu=t4')")
    opened.wait("document.querySelector('#verdict').innerText.includes('T4') && document.querySelector('#stop').hidden")
    page.focus("#copy-command")
    page.keyboard.press("Enter")
    opened.wait("document.querySelector('#copied').innerText.includes('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#command")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    opened.wait("document.querySelector('#copied').innerText.includes('config')")
    assert "sizes:" in page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    opened.wait("document.querySelector('#copied').innerText.includes('link')")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_what_makes_it_fit_can_be_used(tab: Tab, served: tuple[str, Answers]) -> None:
    page, opened = tab.page, tab
    page.goto(f"{served[0]}#job=example%3Afno&gpu=rtx-4090&batch=32&height=64&width=64")
    settled(opened)
    needs = opened.values("#figures [data-key=peak_reserved_bytes]")[0]
    page.fill("[name=limit]", f"{needs * 4 // 5 // 2**20}MiB")
    opened.wait("!document.querySelector('#advise').hidden && document.querySelector('#stop').hidden")
    page.click("#advise")
    opened.wait("document.querySelector('#advice .bars') !== null", 120)
    page.click("#advice button")
    opened.wait("document.querySelector('#verdict').innerText.startsWith('Fits')", 120)
    assert not opened.errors


def test_an_error_is_a_sentence(opened: Tab) -> None:
    opened.page.fill("[name=limit]", "lots")
    opened.wait("document.querySelector('#verdict').innerText.includes('cannot read')")


def test_a_config_can_be_sent(opened: Tab, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: x\ncomponents: {model: {factory: 'os:system'}}\n", encoding="utf-8")
    opened.page.set_input_files("#upload", str(file))
    opened.wait("document.querySelector('#verdict').innerText.includes('runs Python code')")


def test_a_trace_can_be_sent(opened: Tab, tmp_path: Path) -> None:
    trace = transformer(layers=4)
    trace.save(tmp_path / "run.trace")
    opened.page.set_input_files("#upload", str(tmp_path / "run.trace"))
    wait_for(opened, "replayed")
    expected = predict_trace(trace, gpu=find_gpu("rtx-4090"))
    opened.wait(f"document.querySelector('#figures data').value === '{expected.device_bytes}'")
    assert opened.page.is_disabled("[name=precision]") and opened.page.is_enabled("[name=limit]")
    opened.page.fill("[name=limit]", "1GiB")
    opened.wait("document.querySelector('#verdict').innerText.startsWith('Does not fit')")
    assert not opened.errors


def test_frozen_parameters_and_gpus(opened: Tab) -> None:
    page = opened.page
    before = opened.parts("#parts")["optimizer state"]
    page.fill("[name=freeze]", "*weight*")
    opened.wait("document.querySelector('#command').innerText.includes('freeze')")
    settled(opened)
    opened.wait("document.querySelector('#parts [data-part=\"optimizer state\"]') !== null")
    assert opened.parts("#parts")["optimizer state"] < before and "freeze=" in page.url
    page.fill("[name=freeze]", "")
    opened.wait("!document.querySelector('#command').innerText.includes('freeze')")
    page.fill("[name=gpus]", "2")
    page.select_option("[name=strategy]", "fsdp")
    opened.wait("document.querySelector('#command').innerText.includes('fsdp')")
    settled(opened)
    page.fill("[name=pipeline]", "2")
    opened.wait("document.querySelector('#verdict').innerText.includes('gpus.pipeline')")


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_is_cut_off(opened: Tab, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 900})
    opened.page.wait_for_timeout(200)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
