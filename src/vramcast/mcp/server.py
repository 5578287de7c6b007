"""The tools, put on the Model Context Protocol with the official SDK (the `mcp` extra).

Answers are worked out in a thread, one at a time because the virtual card is the process's only one; the server goes on
answering meanwhile. Errors that a caller can cause come back as the tool's error with vramcast's own words.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio.from_thread
import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, ToolAnnotations

from vramcast import __version__
from vramcast.base.access import Limits, limited
from vramcast.base.errors import VramcastError
from vramcast.base.sealing import sealed
from vramcast.mcp.answers import (
    Answer,
    Progress,
    answer_advise,
    answer_check,
    answer_diagnose,
    answer_gpus,
    answer_predict,
    answer_whatif,
)
from vramcast.mcp.inputs import (
    CardName,
    Detail,
    Device,
    Gpu,
    Here,
    JobInput,
    Keep,
    Limit,
    Logs,
    Memory,
    Objective,
    SetupInput,
    Steps,
)

_INSTRUCTIONS = """\
vramcast says before a PyTorch training is started whether it fits a GPU, where the memory goes, and what to change.
Nothing is run on a GPU and none is needed. Ask `check` first; `advise` where it does not fit; `predict` for every byte.
`whatif` says what would make it faster; `diagnose` reads the log of a run and says where its time goes.
Sizes in the documents are bytes."""

_READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_ONE_AT_A_TIME = threading.Lock()


def make_server(limits: Limits) -> MCPServer:
    server: MCPServer = MCPServer("vramcast", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING")
    root = limits.root

    async def answer(context: Context, work: Callable[[Progress], Answer]) -> CallToolResult:
        return await anyio.to_thread.run_sync(_in_thread, limits, context, work, abandon_on_cancel=True)

    async def predict(
        job: JobInput,
        context: Context,
        gpu: Gpu = None,
        limit: Limit = None,
        steps: Steps = 3,
        detail: Detail = "summary",
    ) -> CallToolResult:
        """What a training job takes on a card: peak memory, what it consists of, and which cards hold it."""
        return await answer(context, partial(answer_predict, root, job, gpu, limit, steps, detail))

    async def check(
        job: JobInput, context: Context, gpu: Gpu = None, memory: Memory = None, device: Device = None
    ) -> CallToolResult:
        """Whether a training job fits a card, or what is free on one here; and the one most useful thing to do."""
        return await answer(context, partial(answer_check, root, job, gpu, memory, device))

    async def advise(
        job: JobInput,
        context: Context,
        gpu: Gpu = None,
        memory: Memory = None,
        device: Device = None,
        keep: Keep = None,
        objective: Objective = "throughput",
    ) -> CallToolResult:
        """What to change so that a job fits, each suggestion traced, with what it costs and the config to paste."""
        return await answer(context, partial(answer_advise, root, job, gpu, memory, device, keep or (), objective))

    async def whatif(
        job: JobInput, context: Context, gpu: Gpu = None, memory: Memory = None, keep: Keep = None
    ) -> CallToolResult:
        """Memory, step time, samples/s and epochs of a job with other settings, alone and together, fastest first."""
        return await answer(context, partial(answer_whatif, root, job, gpu, memory, keep or ()))

    async def diagnose(
        logs: Logs,
        context: Context,
        job: JobInput | None = None,
        gpu: Gpu = None,
        setup: SetupInput | None = None,
    ) -> CallToolResult:
        """Where the time of a run goes, from its log: the step in parts, the bottleneck, what would help and what not.

        With its job, what the log did not record is predicted, and each change that would help is traced.
        """
        return await answer(context, partial(answer_diagnose, root, logs, job, gpu, setup or SetupInput()))

    async def gpus(context: Context, name: CardName = None, here: Here = False) -> CallToolResult:
        """The known cards with their specifications, or the cards of this machine as they are now."""
        return await answer(context, partial(answer_gpus, name, here))

    for tool in (predict, check, advise, whatif, diagnose, gpus):
        server.add_tool(tool, annotations=_READ_ONLY)
    return server


def serve(root: Path, *, allow_code: bool) -> None:
    """Until standard input ends."""
    os.chdir(root)
    # Models are built from what lies here; nothing is fetched.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    make_server(Limits(root, allow_code)).run("stdio")


def _in_thread(limits: Limits, context: Context, work: Callable[[Progress], Answer]) -> CallToolResult:
    done = 0

    def progress(text: str) -> None:
        nonlocal done
        done += 1
        # Whoever asked may have gone; the work is finished all the same.
        with contextlib.suppress(Exception):
            anyio.from_thread.run(context.report_progress, done, None, text)

    try:
        with _ONE_AT_A_TIME, limited(limits), sealed(on=not limits.allow_code):
            answer = work(progress)
    except VramcastError as error:
        return CallToolResult(
            content=[TextContent(type="text", text=str(error))],
            structured_content={"error": str(error), "exit_code": error.exit_code},
            is_error=True,
        )
    return CallToolResult(content=[TextContent(type="text", text=answer.text)], structured_content=answer.document)
