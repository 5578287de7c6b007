"""The server as a client sees it, with the SDK's own client: in memory, and as a process over standard input/output."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp.server.mcpserver")

import anyio

from mcp import Client, StdioServerParameters
from vramcast.base.access import Limits
from vramcast.cli.main import main
from vramcast.gpus import state
from vramcast.gpus.survey import Survey
from vramcast.mcp import server as mcp_server
from vramcast.mcp.answers import Answer
from vramcast.mcp.server import make_server

CONFIGS = Path(__file__).parents[1] / "jobs" / "configs"
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def no_cards_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_by_nvml", Survey)


def ask(root: Path, work: Callable[[Client], Awaitable[Any]], *, allow_code: bool = False) -> Any:
    async def session() -> Any:
        async with Client(make_server(Limits(root.resolve(), allow_code))) as client:
            return await work(client)

    return anyio.run(session)


def call(root: Path, tool: str, arguments: dict[str, Any], *, allow_code: bool = False) -> Any:
    return ask(root, lambda client: client.call_tool(tool, arguments), allow_code=allow_code)


def text(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


def job(folder: Path, body: str, name: str = "job.yaml") -> dict[str, str]:
    (folder / name).write_text(body)
    return {"path": name}


def test_the_tools_are_described(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in ask(tmp_path, lambda client: client.list_tools()).tools}
    assert set(tools) >= {"predict", "check", "advise", "whatif", "diagnose", "gpus"}
    schema = tools["predict"].input_schema
    assert schema["required"] == ["job"]
    assert schema["$defs"]["JobInput"]["properties"]["batch"]["description"]
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools.values())


def test_predict_check_and_advise_answer_as_the_verbs_do() -> None:
    pytest.importorskip("transformers")
    from vramcast.jobs.load import load_job
    from vramcast.prediction.predict import predict

    wish = {"path": "llama-tiny", "batch": 1, "sequence": 64}
    expected = predict(load_job(str(CONFIGS / "llama-tiny"), {"sizes.batch": 1, "sizes.sequence": 64}), "rtx-4090")

    kept = ["batch", "checkpointing", "precision", "optimizer", "sequence", "trained"]  # few runs to trace

    async def asked(client: Client) -> list[Any]:
        return [
            await client.call_tool("predict", {"job": wish, "gpu": "rtx-4090"}),
            await client.call_tool("predict", {"job": wish, "gpu": "rtx-4090", "detail": "full"}),
            await client.call_tool("check", {"job": wish, "gpu": "rtx-4090"}),
            await client.call_tool("check", {"job": wish, "gpu": "rtx-4090", "memory": "625MiB"}),
            await client.call_tool("advise", {"job": wish, "gpu": "rtx-4090", "keep": kept}),
        ]

    short, full, check, too_small, advice = ask(CONFIGS, asked)
    assert [text(one) for one in (short, full, check, too_small, advice) if one.is_error] == []
    assert short.structured_content["device_bytes"] == expected.device_bytes
    account = json.loads(json.dumps(expected.to_document()["prediction"]["account"]))
    assert full.structured_content["prediction"]["account"] == account
    assert "timeline" not in short.structured_content["prediction"]["account"]
    assert text(short).startswith("Fits an RTX 4090")
    assert check.structured_content["needed_bytes"] == expected.device_bytes
    assert too_small.structured_content["fits"] is False and text(too_small).startswith("Does not fit")
    assert advice.structured_content["format"] == "vramcast-advice" and advice.structured_content["keep"] == kept


def test_whatif_answers_as_the_verb_does() -> None:
    pytest.importorskip("transformers")
    wish = {"path": "llama-tiny", "batch": 1, "sequence": 64}
    kept = ["batch", "precision", "optimizer"]
    result = call(CONFIGS, "whatif", {"job": wish, "gpu": "rtx-4090", "keep": kept})
    assert not result.is_error, text(result)
    document = result.structured_content
    assert document["format"] == "vramcast-what-if" and document["asked"]["changes"] == []
    assert [one["changes"] for one in document["outcomes"]] == [["checkpoint every block"]]
    assert "samples/s" in text(result)


LOG = "step 950/8880 | 0.5 samples/s | data_time=0.1ms\n"


def test_diagnose_reads_logs_below_the_root_only(tmp_path: Path) -> None:
    root, other = outside(tmp_path)
    (root / "train.log").write_text(LOG)
    (other / "train.log").write_text(LOG)
    found = call(root, "diagnose", {"logs": ["train.log"], "setup": {"batch": 1, "gpus": 3}})
    assert not found.is_error, text(found)
    assert found.structured_content["step_seconds"] == pytest.approx(6.0)
    assert "step 6.00 s" in text(found)
    for name in ("../other/train.log", str(other / "train.log"), "link/train.log"):
        refused = call(root, "diagnose", {"logs": [name]})
        assert refused.is_error and "outside" in text(refused), text(refused)
    refused = call(root, "diagnose", {"logs": ["train.log"], "job": {"path": "link"}})
    assert refused.is_error and "outside" in text(refused)
    (root / "code.py").write_text(FACTORY)
    refused = call(root, "diagnose", {"logs": ["train.log"], "job": {"path": "code.py:build"}})
    assert refused.is_error and "--allow-code" in text(refused)


def test_gpus(tmp_path: Path) -> None:
    known = call(tmp_path, "gpus", {"name": "h200"})
    assert known.structured_content["gpus"][0]["memory_mib"] == 143771 and "(1)" in text(known)
    assert len(call(tmp_path, "gpus", {}).structured_content["gpus"]) >= 45
    here = call(tmp_path, "gpus", {"here": True})
    assert here.structured_content["gpus"] == [] and "no NVIDIA GPU here" in text(here)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("check", {"job": {"path": "none.yaml"}}, "no such file or folder"),
        ("check", {"job": {"path": "llama-tiny"}, "gpu": "rtx-9999"}, "unknown GPU 'rtx-9999'"),
        ("check", {"job": {"path": "llama-tiny", "changes": {"wheels": 4}}}, "wheels"),
        ("check", {"job": {"path": "llama-tiny", "batch": 0}}, "greater than or equal to 1"),
        ("check", {"job": {"path": "llama-tiny", "wheels": 4}}, "wheels"),
        ("check", {"job": {"path": "llama-tiny"}, "device": 0}, "--device 0: there is no NVIDIA GPU here"),
        ("advise", {"job": {"path": "llama-tiny"}, "keep": ["wheels"]}, "wheels"),
        ("whatif", {"job": {"path": "llama-tiny"}, "keep": ["wheels"]}, "wheels"),
        ("diagnose", {"logs": []}, "at least 1"),
        ("diagnose", {"logs": ["-"]}, "no such file"),
        ("diagnose", {"logs": ["llama-tiny/config.json"]}, "says anything about steps"),
        ("diagnose", {"logs": ["llama-tiny/config.json"], "setup": {"throughput": "some"}}, "'one'"),
        ("gpus", {"name": "h200", "here": True}, "leave one out"),
    ],
)
def test_mistakes_are_the_tools_error_with_our_words(tool: str, arguments: dict[str, Any], message: str) -> None:
    result = call(CONFIGS, tool, arguments)
    assert result.is_error and message in text(result)
    assert "Traceback" not in text(result)


def outside(tmp_path: Path) -> tuple[Path, Path]:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (root / "link").symlink_to(other)
    return root, other


@pytest.mark.parametrize(
    "wish",
    [
        {"path": "../other"}, {"path": "{other}"}, {"path": "link"}, {"path": "../other/config.json"},
        {"path": "in.yaml"}, {"path": "args.json"}, {"path": "args.json", "model": "../other"},
        {"path": "args.json", "parts": ["../other/config.json"]}, {"path": "/etc/hostname"},
        {"path": "in.yaml#inference"},
    ],
    ids=str,
)  # fmt: skip
def test_files_outside_the_root_are_not_read(tmp_path: Path, wish: dict[str, Any]) -> None:
    """Neither directly, nor through a link, nor because a config inside names them."""
    root, other = outside(tmp_path)
    job(root, "components:\n  model:\n    transformers: ../other\n", "in.yaml")
    arguments = {"per_device_train_batch_size": 2, "output_dir": "x", "model_name_or_path": str(other)}
    (root / "args.json").write_text(json.dumps(arguments))
    wish = {key: value.format(other=other) if isinstance(value, str) else value for key, value in wish.items()}
    result = call(root, "predict", {"job": wish})
    assert result.is_error and "outside" in text(result), text(result)


FACTORY = "def build():\n    open('ran', 'w').close()\n    raise SystemExit('it ran')\n"


@pytest.mark.parametrize(
    "body",
    [
        "components:\n  model:\n    factory: code.py:build\ninputs:\n  x: {shape: [batch, 3]}\n",
        "components:\n  model:\n    factory: code:build\ninputs:\n  x: {shape: [batch, 3]}\n",
        "step:\n  factory: code.py:build\n",
        "script: code.py\n",
        "components:\n  model:\n    transformers: folder\n    trust_remote_code: true\n",
    ],
)
def test_no_code_is_run(tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    (tmp_path / "code.py").write_text(FACTORY)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "mine", "architectures": ["Mine"], "auto_map": {"AutoConfig": "code.Mine"}}'
    )
    result = call(tmp_path, "predict", {"job": job(tmp_path, body)})
    assert result.is_error and "start it with --allow-code" in text(result), text(result)
    assert not (tmp_path / "ran").exists()
    assert sys.path == before


@pytest.mark.parametrize("path", ["code.py:build", "os:getcwd"])
def test_a_function_is_no_job_without_the_flag(tmp_path: Path, path: str) -> None:
    (tmp_path / "code.py").write_text(FACTORY)
    result = call(tmp_path, "predict", {"job": {"path": path}})
    assert result.is_error and "--allow-code" in text(result)


def test_code_runs_where_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        "import torch\ndef build():\n    print('on standard output')\n    return torch.nn.Linear(64, 64)\n"
    )
    wish = job(tmp_path, "components:\n  model:\n    factory: code.py:build\n    inputs: [x]\ninputs:\n"
                         "  x: {shape: [batch, 64]}\nloss: mean\n")  # fmt: skip
    result = call(tmp_path, "check", {"job": wish, "gpu": "rtx-4090"}, allow_code=True)
    assert not result.is_error, text(result)
    assert result.structured_content["fits"] is True


def test_other_requests_are_answered_during_a_long_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction ends only after the other answers have come."""
    answered = threading.Event()
    texts: list[Any] = []

    def slow(*_: object) -> Answer:
        progress = _[-1]
        assert callable(progress)
        progress("loading PyTorch")
        assert answered.wait(timeout=60)
        return Answer("done", {"waited": True})

    monkeypatch.setattr(mcp_server, "answer_predict", slow)

    async def both(client: Client) -> Any:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            texts.append(message)

        results: list[Any] = []

        async def long() -> None:
            results.append(await client.call_tool("predict", {"job": {"path": "x"}}, progress_callback=heard))

        async with anyio.create_task_group() as group:
            group.start_soon(long)
            await anyio.wait_all_tasks_blocked()
            await client.list_tools()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(mcp_server, "_ONE_AT_A_TIME", threading.Lock())
                assert not (await client.call_tool("gpus", {"name": "h200"})).is_error
            assert not results
            answered.set()
        return results[0]

    assert ask(tmp_path, both).structured_content == {"waited": True}
    assert texts == ["loading PyTorch"]


def test_over_standard_input_and_output(tmp_path: Path) -> None:
    """As an agent starts it. A module in the root that is called like a library is not imported in its place."""
    (tmp_path / "rich.py").write_text("raise SystemExit('imported from the root')")
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "vramcast", "mcp"], cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([str(SRC), *(entry for entry in sys.path if "site-packages" in entry)])},
    )  # fmt: skip

    async def session() -> tuple[Any, Any, str]:
        async with Client(server) as client:
            return (
                await client.call_tool("gpus", {"name": "rtx-4090"}),
                await client.call_tool("predict", {"job": {"path": "none.yaml"}}),
                client.server_info.name if client.server_info else "",
            )

    card, missing, name = anyio.run(session)
    assert name == "vramcast"
    assert card.structured_content["gpus"][0]["id"] == "rtx-4090"
    assert missing.is_error and "no such file" in text(missing)


def test_the_verb_without_a_root_or_the_sdk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["mcp", "--root", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "vramcast.mcp.server")
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main(["mcp"]) == 2
    assert 'pip install "vramcast[mcp]"' in capsys.readouterr().err
