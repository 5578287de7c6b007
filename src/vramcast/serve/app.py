"""The server: a page, its script, and a few questions that it asks. It answers its own page and nobody else."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from vramcast.base.errors import VramcastError
from vramcast.base.language import sentence
from vramcast.overlay.helper import Helper
from vramcast.serve.answers import Answers
from vramcast.serve.page import page_html, page_script, page_styles
from vramcast.serve.sources import MOST_TRACE_BYTES, MOST_UPLOAD_BYTES, Sources
from vramcast.serve.state import PageState
from vramcast.serve.tracer import Stopped

_MOST_BODY_BYTES = 2 * MOST_UPLOAD_BYTES
_REPLAYS_AT_ONCE = 2
LONGEST_UPLOAD_SECONDS = 60.0
_ASK_SECONDS = 0.2
"""How often it is looked whether the page still waits."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class OwnPageOnly:
    """Refuses requests for another host, which a site may point at this address (DNS rebinding), and those that
    another site's page sends."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = self._problem(scope)
            if problem:
                await JSONResponse({"error": problem}, 403, HEADERS)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> str:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if host not in self._hosts:
            return "this server answers to its own address only"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return "requests of other sites are refused"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return "requests of other sites are refused"
        kind = "application/octet-stream" if scope["path"] == "/api/trace" else "application/json"
        if scope["method"] == "POST" and headers.get("content-type", "").partition(";")[0] != kind:
            return f"send {kind}"
        return ""


def make_app(answers: Answers, hosts: frozenset[str]) -> ASGIApp:
    replays = anyio.CapacityLimiter(_REPLAYS_AT_ONCE)

    async def page(request: Request) -> Response:
        return HTMLResponse(page_html(answers.start()), headers=HEADERS)

    async def job(request: Request) -> Response:
        state = await _state(request)
        return _json(await anyio.to_thread.run_sync(answers.job, state, limiter=replays))

    async def quick(request: Request) -> Response:
        state = await _state(request)
        work = partial(answers.quick, state, with_pictures=request.query_params.get("pictures") == "1")
        return _json(await anyio.to_thread.run_sync(work, limiter=replays))

    async def exact(request: Request) -> Response:
        """Traces; when the page no longer waits, the work is stopped."""
        state = await _state(request)
        return _json(await _while_waiting(request, lambda stop: answers.exact(state, stop, lambda text: None)))

    async def more(request: Request) -> Response:
        """Trace another batch, so that all others can be worked out."""
        state = await _state(request)
        other = await anyio.to_thread.run_sync(answers.second_batch, state, limiter=replays)
        if other is None:
            return _json({"traced": False})
        await _while_waiting(request, lambda stop: answers.exact(other, stop, lambda text: None))
        return _json({"traced": True, "batch": other.batch})

    async def changes(request: Request) -> Response:
        state = await _state(request)
        return _json(await _while_waiting(request, lambda stop: answers.changes(state, stop)))

    async def upload(request: Request) -> Response:
        sent = await _body(request)
        name, text = sent.get("name"), sent.get("text")
        if not isinstance(name, str) or not isinstance(text, str):
            raise HTTPException(400, "send a name and a text")
        return _json({"job": answers.sources.add_upload(name, text)})

    async def trace(request: Request) -> Response:
        """A trace that `vramcast run --save` wrote."""
        content = await _content(request, MOST_TRACE_BYTES)
        return _json({"job": await anyio.to_thread.run_sync(answers.sources.add_trace, content, limiter=replays)})

    async def script(request: Request) -> Response:
        return Response(page_script(), media_type="text/javascript", headers=HEADERS)

    async def styles(request: Request) -> Response:
        return Response(page_styles(), media_type="text/css", headers=HEADERS)

    routes = [
        Route("/", page),
        Route("/page.js", script),
        Route("/page.css", styles),
        *(
            Route(f"/api/{work.__name__}", work, methods=["POST"])
            for work in (job, quick, exact, more, changes, upload, trace)
        ),
    ]  # fmt: skip

    async def problem(request: Request, error: Exception) -> Response:
        """An error of the user's, in vramcast's own words."""
        assert isinstance(error, VramcastError)
        status = 499 if isinstance(error, Stopped) else 422
        text = sentence(answers.sources.as_sent(str(error)))
        return JSONResponse({"error": text, "exit_code": error.exit_code}, status, HEADERS)

    handlers: dict[Any, Callable[..., Any]] = {VramcastError: problem, HTTPException: _refusal}
    return OwnPageOnly(Starlette(routes=routes, exception_handlers=handlers), hosts)


def serve(root: Path, host: str, port: int, *, allow_code: bool, started: Callable[[str], None]) -> None:
    """Until it is interrupted."""
    with _folder_of_uploads() as uploads:
        answers = Answers(Sources(root, uploads, allow_code=allow_code))
        hosts = frozenset(f"{name}:{port}" for name in {host, "localhost", "127.0.0.1", "[::1]"})
        config = uvicorn.Config(
            make_app(answers, hosts), host=host, port=port, log_level="error", server_header=False,
            limit_concurrency=200, timeout_keep_alive=10,
        )  # fmt: skip
        started(f"http://{host}:{port}/")
        try:
            uvicorn.Server(config).run()
        finally:
            answers.tracer.close()


@contextmanager
def _folder_of_uploads() -> Iterator[Path]:
    """It is removed in the end, even if this process is killed: where there are forks, another one waits for that."""
    with tempfile.TemporaryDirectory(prefix="vramcast-", ignore_cleanup_errors=True) as folder:
        remover = Helper(folder) if hasattr(os, "fork") else None
        try:
            yield Path(folder)
        finally:
            if remover is not None:
                remover.close()


async def _while_waiting(request: Request, work: Callable[[threading.Event], dict[str, Any]]) -> dict[str, Any]:
    stop = threading.Event()
    found: dict[str, Any] = {}

    async def watch() -> None:
        while not await request.is_disconnected():
            await anyio.sleep(_ASK_SECONDS)
        stop.set()

    # An error leaves the group as it is, not wrapped in a group of errors.
    error: VramcastError | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            found = await anyio.to_thread.run_sync(work, stop, limiter=anyio.CapacityLimiter(1))
        except VramcastError as problem:
            error = problem
        group.cancel_scope.cancel()
    if error is not None:
        raise error
    return found


async def _state(request: Request) -> PageState:
    try:
        return PageState.model_validate(await _body(request))
    except ValidationError as error:
        first = error.errors()[0]
        raise HTTPException(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


async def _content(request: Request, most_bytes: int) -> bytes:
    body = bytearray()
    with anyio.move_on_after(LONGEST_UPLOAD_SECONDS) as timed:
        async for part in request.stream():
            body += part
            if len(body) > most_bytes:
                raise HTTPException(413, f"at most {most_bytes // 1024} KiB can be sent")
    if timed.cancelled_caught:
        raise HTTPException(408, f"sending took longer than {LONGEST_UPLOAD_SECONDS:.0f} s")
    return bytes(body)


async def _body(request: Request) -> dict[str, Any]:
    try:
        sent = json.loads(await _content(request, _MOST_BODY_BYTES))
    except (ValueError, RecursionError):
        raise HTTPException(400, "send JSON") from None
    if not isinstance(sent, dict):
        raise HTTPException(400, "send a JSON object")
    return sent


def _json(document: Any) -> Response:
    return JSONResponse(document, headers=HEADERS)


def _refusal(request: Request, error: Exception) -> Awaitable[Response] | Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": sentence(error.detail)}, error.status_code, HEADERS)
