"""The server of the page: what it answers is what `predict` says, and it answers nobody but its own page."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import anyio
from starlette.testclient import TestClient

from tests.samples import transformer
from vramcast.base.access import limited
from vramcast.base.errors import UsageError
from vramcast.cli.main import main
from vramcast.features.advise.result import Suggestion
from vramcast.gpus import find_gpu
from vramcast.jobs.load import LoadedJob
from vramcast.memory import predict as predict_trace
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import predict
from vramcast.serve import app
from vramcast.serve.answers import TRACED, WORKED_OUT, Answers
from vramcast.serve.app import make_app
from vramcast.serve.sources import MOST_UPLOAD_BYTES, Sources
from vramcast.serve.state import PageState
from vramcast.serve.tracer import Stopped, Tracer, answer

HOST = "127.0.0.1:8008"
SMALL = {"job": "example:fno", "batch": 4, "height": 32, "width": 32}


class TracerHere:
    """Traces in this process, so that torch is not loaded once more."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.traced: list[PageState] = []
        self._lock = threading.Lock()

    def trace(self, state: PageState, stop: threading.Event, progress: Callable[[str], None]) -> JobPrediction:
        if stop.is_set():
            raise Stopped("stopped")
        self.traced.append(state)
        with self._lock, limited(self._sources.limits(state)):  # one at a time, as the real one
            found: JobPrediction = answer("predict", self._sources, state, progress)
        return found

    def changes(self, state: PageState, stop: threading.Event) -> tuple[Suggestion, ...]:
        with self._lock, limited(self._sources.limits(state)):
            found: tuple[Suggestion, ...] = answer("advise", self._sources, state, lambda text: None)
        return found

    def close(self) -> None: ...


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    root, uploads = tmp_path / "root", tmp_path / "uploads"
    root.mkdir()
    uploads.mkdir()
    (root / "mine").mkdir()
    (root / "mine" / "vramcast.yaml").write_text("name: mine\ncomponents: {model: {factory: 'net.py:build'}}\n")
    (tmp_path / "secret.yaml").write_text("name: secret\n")
    sources = Sources(root, uploads)
    return Answers(sources, TracerHere(sources))  # type: ignore[arg-type]


@pytest.fixture
def client(answers: Answers) -> Iterator[TestClient]:
    with TestClient(make_app(answers, frozenset({HOST})), base_url=f"http://{HOST}") as client:
        yield client


def ask(client: TestClient, what: str, state: dict[str, Any]) -> Any:
    answer = client.post(f"/api/{what}", json=state)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_page_lists_what_can_be_chosen(client: TestClient) -> None:
    page = client.get("/")
    assert "example:transformer-1b" in page.text and "folder:mine" in page.text and "rtx-4090" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "uPlot" in client.get("/page.js").text and ".controls" in client.get("/page.css").text


def test_the_figures_are_those_of_predict(client: TestClient, answers: Answers) -> None:
    assert ask(client, "quick", SMALL) is None
    found = ask(client, "exact", SMALL)
    state = PageState.model_validate(SMALL)
    loaded: LoadedJob = answers.sources.load(state)
    expected = predict(loaded, "rtx-4090")
    assert found["device_bytes"] == expected.device_bytes
    assert found["parts"] == {part.name: part.size_bytes for part in expected.account.parts if part.size_bytes}
    assert found["kind"] == TRACED and found["pictures"]["course"]["limit"] == expected.prediction.limit_bytes
    assert ask(client, "quick", SMALL)["device_bytes"] == expected.device_bytes


def test_the_command_says_the_same(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    import json
    import shlex

    found = ask(client, "exact", SMALL | {"gpu": "t4", "precision": "bf16"})
    words = shlex.split(found["command"])
    assert words[:2] == ["vramcast", "predict"] and "--precision" in words
    capsys.readouterr()
    main([*words[1:], "--json"])
    assert json.loads(capsys.readouterr().out)["device_bytes"] == found["device_bytes"]


def test_the_config_says_the_same(client: TestClient, tmp_path: Path) -> None:
    found = ask(client, "exact", SMALL | {"precision": "bf16", "accumulation": 2})
    file = tmp_path / "vramcast.yaml"
    file.write_text(found["config"], encoding="utf-8")
    assert predict(file, "rtx-4090", allow_code=True).device_bytes == found["device_bytes"]


@pytest.mark.slow
def test_a_process_of_its_own_traces_and_can_be_stopped(answers: Answers) -> None:
    tracer = Tracer(answers.sources)
    state = PageState.model_validate(SMALL)
    try:
        found = tracer.trace(state, threading.Event())
        assert found.device_bytes == predict(answers.sources.load(state), "rtx-4090").device_bytes
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        with pytest.raises(Stopped):
            tracer.trace(PageState(job="example:transformer-1b", batch=7), stop)
        assert tracer._process is None, "it is ended, and started again when it is needed"
    finally:
        tracer.close()


def test_another_card_is_a_replay(client: TestClient, answers: Answers) -> None:
    ask(client, "exact", SMALL)
    found = ask(client, "quick", SMALL | {"gpu": "a100-80gb", "limit": "1GiB"})
    trace = predict(answers.sources.load(PageState.model_validate(SMALL)), "rtx-4090").trace
    assert trace is not None
    expected = predict_trace(trace, gpu=find_gpu("a100-80gb"), capacity_bytes=2**30)
    assert (found["device_bytes"], found["limit_bytes"]) == (expected.device_bytes, expected.limit_bytes)
    assert found["kind"] == "replayed"


def test_other_batches_are_worked_out_from_two(client: TestClient) -> None:
    ask(client, "exact", SMALL)
    assert ask(client, "quick", SMALL | {"batch": 8}) is None
    assert ask(client, "more", SMALL) == {"traced": True, "batch": 3}
    assert ask(client, "more", SMALL) == {"traced": False}
    found = ask(client, "quick", SMALL | {"batch": 8})
    assert found["kind"] == WORKED_OUT and "batch 3 and 4" in found["how"]
    traced = ask(client, "exact", SMALL | {"batch": 8})
    assert abs(found["device_bytes"] - traced["device_bytes"]) <= 0.05 * traced["device_bytes"]


def test_settings_change_the_job(client: TestClient, answers: Answers) -> None:
    state = PageState.model_validate(SMALL | {"optimizer": "sgd", "mode": "lora", "gpus": 2})
    job = answers.sources.load(state).job
    assert (job.gpus.count, job.sizes["batch"]) == (2, 4)
    assert job.components["model"].mode == "lora"


def test_changes_can_be_used(client: TestClient) -> None:
    large = SMALL | {"batch": 256}
    needed = ask(client, "exact", large)["peak_reserved_bytes"]
    tight = large | {"limit": str(needed * 7 // 10)}
    assert ask(client, "exact", tight)["fits"] is False
    found = ask(client, "changes", tight)
    assert found["changes"] and "limit" in found["bars"]
    usable = next(change["state"] for change in found["changes"] if change["state"] is not None)
    assert ask(client, "exact", usable)["fits"] is True


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8008"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
    ],
    ids=str,
)
def test_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    sent = {"content-type": "application/json", **headers}
    assert client.post("/api/job", content=b'{"job": "example:fno"}', headers=sent).status_code == 403


def test_a_page_of_another_name_is_refused(client: TestClient) -> None:
    assert client.get("/", headers={"host": "rebound.example:8008"}).status_code == 403


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"job": "folder:../secret.yaml"}, "outside"),
        ({"job": "folder:/etc/passwd"}, "outside"),
        ({"job": "folder:mine"}, "runs Python code"),
        ({"job": "folder:none"}, "no such file"),
        ({"job": "upload:../../x"}, "gone"),
        ({"job": "example:none"}, "no example"),
        ({"job": "what"}, "a job is folder:PATH"),
    ],
    ids=lambda value: str(value),
)
def test_what_may_not_be_read_is_said(client: TestClient, state: dict[str, str], words: str) -> None:
    answer = client.post("/api/quick", json=state)
    assert answer.status_code == 422 and words in answer.json()["error"]


@pytest.mark.parametrize(
    "sent", [{"job": "example:fno", "batch": 0}, {"job": "example:fno", "optimizer": "os.system"}, {"job": 3}, {}, []]
)
def test_a_wrong_state_is_refused(client: TestClient, sent: Any) -> None:
    assert client.post("/api/quick", json=sent).status_code == 400


def test_an_upload_is_read_and_never_run(client: TestClient) -> None:
    harmless = "name: sent\ncomponents: {model: {factory: 'os:system'}}\nsizes: {batch: 2}\n"
    job = ask(client, "upload", {"name": "../../evil.yaml", "text": harmless})["job"]
    answer = client.post("/api/job", json={"job": job})
    assert answer.status_code == 422
    said = "job.yaml: components.model.factory says `factory: os:system`: runs Python code"
    assert answer.json()["error"] == f"{said}, and what is sent to a server never runs"
    pickle = client.post("/api/upload", json={"name": "model.pkl", "text": "x"})
    assert pickle.status_code == 422 and ".yaml" in pickle.json()["error"]


def test_an_upload_cannot_name_another_one(client: TestClient) -> None:
    config = '{"model_type": "llama", "hidden_size": 64}'
    other = ask(client, "upload", {"name": "config.json", "text": config})["job"].removeprefix("upload:")
    for path in (f"../{other}", f"../{other}/config.json"):
        text = f"name: x\ncomponents: {{model: {{transformers: '{path}'}}}}\nsizes: {{batch: 2, sequence: 8}}\n"
        job = ask(client, "upload", {"name": "a.yaml", "text": text})["job"]
        answer = client.post("/api/exact", json={"job": job})
        assert answer.status_code == 422 and "outside" in answer.json()["error"]


def test_a_trace_that_was_sent_is_replayed(client: TestClient, tmp_path: Path) -> None:
    trace = transformer(layers=4)
    trace.save(tmp_path / "run.trace")
    binary = {"Content-Type": "application/octet-stream"}
    sent = client.post("/api/trace", content=(tmp_path / "run.trace").read_bytes(), headers=binary)
    job = sent.json()["job"]
    described = ask(client, "job", {"job": job})
    assert described["is_trace"] and described["sizes"] == {}
    found = ask(client, "quick", {"job": job, "gpu": "t4"})
    assert found["device_bytes"] == predict_trace(trace, gpu=find_gpu("t4")).device_bytes
    assert found["kind"] == "replayed" and found["command"] == "vramcast show --gpu t4 run.trace"
    assert ask(client, "exact", {"job": job, "gpu": "t4"})["device_bytes"] == found["device_bytes"]
    assert ask(client, "more", {"job": job}) == {"traced": False}
    assert client.post("/api/changes", json={"job": job}).status_code == 422
    damaged = client.post("/api/trace", content=b"\x1f\x8bnot a trace", headers=binary)
    assert damaged.status_code == 422 and damaged.json()["error"].startswith("not a vramcast trace: run.trace")
    nearly = gzip.compress(json.dumps({"format": "vramcast-trace", "version": 99}).encode())
    old = client.post("/api/trace", content=nearly, headers=binary)
    assert old.status_code == 422 and "version 99" in old.json()["error"] and "/" not in old.json()["error"]
    assert client.post("/api/trace", json={}).status_code == 403


@pytest.mark.parametrize(
    ("change", "option"),
    [({"freeze": "*weight*"}, "freeze"), ({"gpus": 2, "strategy": "fsdp"}, "fsdp"), ({"compile": "off"}, "")],
)
def test_freezing_and_parallelism(client: TestClient, change: dict[str, Any], option: str) -> None:
    plain, changed = ask(client, "exact", SMALL), ask(client, "exact", SMALL | change)
    assert option in changed["command"]
    state = "optimizer state"
    assert changed["parts"][state] < plain["parts"][state] if option else changed["parts"] == plain["parts"]


def test_uploads_are_bounded(client: TestClient, answers: Answers) -> None:
    large = "x" * (MOST_UPLOAD_BYTES + 1)
    assert client.post("/api/upload", json={"name": "a.yaml", "text": large}).status_code == 422
    assert client.post("/api/upload", json={"name": "a.yaml", "text": large * 3}).status_code == 413
    for number in range(60):
        try:
            answers.sources.add_upload("a.yaml", f"name: {number}")
        except UsageError as error:
            assert "too many" in str(error)
            break
    else:
        raise AssertionError("uploads without end")


def test_sending_is_bounded_in_time(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LONGEST_UPLOAD_SECONDS", 0.05)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        """One byte, and then no more."""
        if sent:
            await anyio.sleep(60)
        sent.append(b"{")
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", HOST.encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/job", "headers": headers, "query_string": b""}
    anyio.run(make_app(answers, frozenset({HOST})), scope, receive, send)
    assert sent[1]["status"] == 408 and "longer" in json.loads(sent[2]["body"])["error"]


def test_stopped_work_is_not_begun(answers: Answers) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        answers.exact(PageState.model_validate(SMALL), stop, lambda text: None)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "vramcast.serve.app", None)
    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)
    real = __import__

    def missing(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "vramcast.serve.app":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *arguments, **more)

    monkeypatch.setattr("builtins.__import__", missing)
    assert main(["serve", "--port", "8999"]) == 2
    assert "pip install starlette uvicorn" in capsys.readouterr().err
