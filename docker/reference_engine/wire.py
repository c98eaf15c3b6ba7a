"""The HTTP side: ATOM's routes over the scheduler, plain responses and event streams, clients that go away."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from reference_engine import protocol
from reference_engine.metrics import Metrics
from reference_engine.protocol import ApiError, Limits
from reference_engine.scheduler import Overloaded, Piece, Scheduler, Sequence, Stopped
from reference_engine.text import Text

MAX_BODY_BYTES = 2 << 20  # a prompt of 8192 tokens has some 50 KB; batches of them fit too
MAX_DISCARDED_BYTES = 64 << 20
HTTP_5XX_EVERY = 20


@dataclass(frozen=True, slots=True)
class Served:
    """What the routes need. `launches` reads the kernel's counter; `fail_every` > 0 answers every n-th request 500."""

    scheduler: Scheduler
    text: Text
    limits: Limits
    metrics: Metrics
    launches: Callable[[], int]
    fail_every: int = 0


async def _read_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request.

    A body that is too large is read to its end and thrown away: answering earlier makes most clients see a reset
    connection instead of the 413.
    """
    data, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size <= MAX_BODY_BYTES:
            data += part
        if size > MAX_DISCARDED_BYTES:
            break
    if size > MAX_BODY_BYTES:
        raise ApiError(413, "body_too_large", f"the body has more than {MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "malformed_json", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "wrong_type", f"the body must be a JSON object, got {type(body).__name__}")
    return body


class Generation:
    """The sequences of one request and the pieces they give, as an async iterator of (index, piece)."""

    def __init__(self, scheduler: Scheduler, request: protocol.Request) -> None:
        loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self._scheduler = scheduler

        def deliver_to(index: int) -> Callable[[Piece], None]:
            def deliver(piece: Piece) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._queue.put_nowait, (index, piece))

            return deliver

        self.sequences = [
            Sequence(ids, sampling, deliver_to(index))
            for index, (ids, sampling) in enumerate(zip(request.prompts, request.sampling, strict=True))
        ]
        try:
            scheduler.submit(self.sequences)
        except Overloaded as error:
            raise ApiError(503, "overloaded", f"{error}; try again later") from error
        except Stopped as error:
            raise ApiError(503, "stopping", "the server is stopping") from error

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        open_sequences = len(self.sequences)
        while open_sequences:
            index, piece = await self._queue.get()
            open_sequences -= piece.finish_reason is not None
            yield index, piece

    def cancel(self) -> None:
        self._scheduler.cancel(self.sequences)


@dataclass(slots=True)
class Usage:
    prompt: int
    completion: int = 0
    cached: int = 0

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class Shape:
    """How completions and chat completions differ on the wire."""

    prefix: str
    whole: str
    chunk: str
    chat: bool

    def choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {"index": index, **content, "logprobs": None, "finish_reason": reason}

    def delta(self, index: int, text: str, reason: str | None, *, first: bool) -> dict[str, Any]:
        if not self.chat:
            return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if text or first:
            delta["content"] = text
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


COMPLETION = Shape("cmpl", "text_completion", "text_completion", chat=False)
CHAT = Shape("chatcmpl", "chat.completion", "chat.completion.chunk", chat=True)


def _head(shape: Shape, served: Served, kind: str) -> dict[str, Any]:
    return {
        "id": f"{shape.prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": served.limits.served_name,
    }


async def _until_gone(receive: Receive) -> None:
    """Returns when the client has closed its connection (the body must have been read)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _whole(served: Served, shape: Shape, request: protocol.Request, receive: Receive) -> Response:
    generation = Generation(served.scheduler, request)

    async def collect() -> Response:
        texts, reasons = [""] * len(request.prompts), [""] * len(request.prompts)
        usage = Usage(sum(map(len, request.prompts)))
        async for index, piece in generation.pieces():
            texts[index] += piece.text
            if piece.finish_reason == "error":
                raise ApiError(500, "engine_failed", "the engine failed while it generated; see its log")
            if piece.finish_reason:
                reasons[index] = piece.finish_reason
                usage.completion += piece.generated
                usage.cached += piece.cached
        return JSONResponse(
            _head(shape, served, shape.whole)
            | {"choices": [shape.choice(i, text, reasons[i]) for i, text in enumerate(texts)], "usage": usage.body()}
        )

    work, gone = asyncio.ensure_future(collect()), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return Response(status_code=499)  # nobody reads it; the metric and the log do
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        generation.cancel()


class EventStream(Response):
    """Server-sent events; ends the generation when the client goes away."""

    media_type = "text/event-stream"

    def __init__(self, served: Served, shape: Shape, request: protocol.Request) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._generation = Generation(served.scheduler, request)
        self._shape, self._request = shape, request
        self._head = _head(shape, served, shape.chunk)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work, gone = asyncio.ensure_future(self._send_all(send)), asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            self._generation.cancel()

    async def _send_all(self, send: Send) -> None:
        async def event(data: str) -> None:
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})

        async def chunk(**fields: Any) -> None:
            await event(json.dumps(self._head | fields, ensure_ascii=False))

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        usage = Usage(sum(map(len, self._request.prompts)))
        seen: set[int] = set()
        failed = False
        async for index, piece in self._generation.pieces():
            if piece.finish_reason == "error":
                failed = True
                continue
            if piece.text or piece.finish_reason or index not in seen:
                await chunk(
                    choices=[self._shape.delta(index, piece.text, piece.finish_reason, first=index not in seen)]
                )
                seen.add(index)
            if piece.finish_reason:
                usage.completion += piece.generated
                usage.cached += piece.cached
        if failed:
            # The status line is gone; an error event and no [DONE] is how a client can tell.
            await event(
                json.dumps(ApiError(500, "engine_failed", "the engine failed while it generated; see its log").body())
            )
        else:
            if self._request.stream_usage:
                await chunk(choices=[], usage=usage.body())
            await event("[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def build_app(served: Served) -> FastAPI:
    """The routes of ATOM's server that a client of a MegaMoE service uses, and /metrics."""
    app = FastAPI(title="reference engine", docs_url=None, redoc_url=None, openapi_url=None)
    counter = itertools.count(1)

    async def complete(request: Request, shape: Shape, parse: Callable[[dict[str, Any]], protocol.Request]) -> Response:
        body = await _read_body(request)
        if served.fail_every and next(counter) % served.fail_every == 0:
            raise ApiError(
                500, "rehearsal_fault", f"planted by the rehearsal: every {served.fail_every}th request fails"
            )
        parsed = parse(body)
        if parsed.stream:
            return EventStream(served, shape, parsed)
        return await _whole(served, shape, parsed, request.receive)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await complete(
            request, COMPLETION, lambda body: protocol.completion(body, served.limits, served.text.encode)
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await complete(
            request,
            CHAT,
            lambda body: protocol.chat(
                body, served.limits, lambda messages: served.text.encode(served.text.chat(messages))
            ),
        )

    @app.get("/health")
    async def health() -> Response:
        # ATOM says ok even when its engine is dead; a lie like that has no use in a rehearsal.
        alive = served.scheduler.alive
        return JSONResponse({"status": "ok" if alive else "engine dead"}, status_code=200 if alive else 503)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {
            "id": served.limits.served_name,
            "object": "model",
            "created": 0,
            "owned_by": "atom",
            "max_model_len": served.limits.max_model_len,
        }
        return {"object": "list", "data": [card]}

    @app.get("/metrics")
    async def metrics() -> Response:
        served.metrics.moe_launches.set(served.launches())
        return Response(served.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        headers = {"retry-after": "5"} if error.status == 503 else None
        return JSONResponse(error.body(), status_code=error.status, headers=headers)

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        known = "GET /health, /v1/models, /metrics; POST /v1/completions, /v1/chat/completions"
        return JSONResponse(
            ApiError(
                error.status_code, code, f"{request.method} {request.url.path}: {error.detail}; this server has {known}"
            ).body(),
            status_code=error.status_code,
            headers=error.headers,
        )

    routes = {"/health", "/v1/models", "/metrics", "/v1/completions", "/v1/chat/completions"}

    @app.middleware("http")
    async def count(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        route = (
            request.url.path if request.url.path in routes else "other"
        )  # a path of the client's would grow the registry
        served.metrics.requests.labels(route, str(response.status_code)).inc()
        return response

    return app
