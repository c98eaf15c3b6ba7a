"""First contact with an OpenAI-compatible server: address, key, model list, start time. Shared with smoke."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from megamoe_atom.problem import Exit, Problem

from megamoe.text_input import read_text


def base_url(url: str) -> str:
    """http://host:port without /v1. Raises Problem (exit 2) for anything that is not an http(s) address."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username and parts.port != 0
    except ValueError:  # half an IPv6 address, or a port that is none
        good = False
    if not good:
        raise Problem(
            "url",
            what=f"{url.split('@')[-1]!r} is not a server address",
            why="requests go to http(s)://HOST[:PORT]; a key in the address would end up in logs",
            fix="write http://HOST:8000 and pass the key as MEGAMOE_API_KEY",
        )
    return re.sub(r"(/v1)?/*$", "", url)


def api_key(key_file: str | None) -> str | None:
    """The key from a file or MEGAMOE_API_KEY; never from argv."""
    key = read_text(Path(key_file)).strip() if key_file else os.environ.get("MEGAMOE_API_KEY", "").strip()
    return key or None


def client(base: str, key: str | None, timeout_s: float = 30.0) -> httpx.Client:
    """Raises Problem (exit 2) for a time in which nothing could be answered."""
    if not 0 < timeout_s < math.inf:
        raise Problem(
            "timeout",
            what=f"--timeout {timeout_s:g} is no number of seconds above 0",
            why="every request would fail at once, or never",
            fix="leave it out, or write e.g. --timeout 300",
        )
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=base, headers=headers, timeout=timeout_s, follow_redirects=False)


def unreachable(base: str, error: Exception) -> Problem:
    text = f"{type(error).__name__}: {error}"[:200]
    if "SSL" in text or "certificate" in text.lower():
        return Problem(
            "tls",
            what=f"TLS to {base} failed: {text}",
            why="the server's certificate was not accepted, or it does not speak TLS on this port",
            fix="check http against https, or set SSL_CERT_FILE to your CA",
            exit_code=Exit.UNREACHABLE,
        )
    return Problem(
        "unreachable",
        what=f"{base} does not answer: {text}",
        why="nothing could be asked",
        fix="check address and port, and that the server has finished loading",
        exit_code=Exit.UNREACHABLE,
    )


def get_json(http: httpx.Client, path: str) -> Any:
    """GET as JSON. Raises Problem: unreachable or TLS (exit 3), 401/403 (exit 2), other status or not JSON (exit 3)."""
    base = str(http.base_url).rstrip("/")
    try:
        response = http.get(path)
    except httpx.HTTPError as error:
        raise unreachable(base, error) from None
    if response.status_code in (401, 403):
        raise Problem(
            "unauthorised",
            what=f"{base}{path} answers {response.status_code}",
            why="the server wants an API key, or another one",
            fix="set MEGAMOE_API_KEY, or pass --api-key-file",
        )
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code != 200 or body is None:
        kind = response.headers.get("content-type", "no content type")
        raise Problem(
            "not_openai",
            what=f"{base}{path} answers {response.status_code} with {kind}: {response.text[:80]!r}",
            why="this is not an OpenAI-compatible server, or a proxy answered in its place",
            fix="check the address and port; a login page or a gateway error looks like this",
            exit_code=Exit.UNREACHABLE,
        )
    return body


def served_model(http: httpx.Client, wanted: str | None) -> tuple[str, dict[str, Any]]:
    """The model to ask for and its entry in /v1/models. Raises Problem (exit 1) when `wanted` is not served."""
    body = get_json(http, "/v1/models")
    entries = body.get("data") if isinstance(body, dict) else None
    names = [m["id"] for m in entries or [] if isinstance(m, dict) and isinstance(m.get("id"), str)]
    if wanted is None and len(names) == 1:
        wanted = names[0]
    if wanted is None or wanted not in names:
        raise Problem(
            "wrong_model",
            what=f"/v1/models lists {names}, " + (f"not {wanted!r}" if wanted else "not one model"),
            why="any server may answer on this port; an answer of another model proves nothing",
            fix="pass --model with the served name, or find out what runs on this port",
            exit_code=Exit.CHECK_FAILED,
        )
    return wanted, next(m for m in entries or [] if m.get("id") == wanted)


def server_started(http: httpx.Client) -> float | None:
    """process_start_time_seconds from /metrics; None where the server has no such metric (ATOM has none)."""
    try:
        response = http.get("/metrics", timeout=5)
    except httpx.HTTPError:
        return None
    found = re.search(r"^process_start_time_seconds(?:\{[^}]*\})?\s+([0-9.eE+]+)", response.text, re.MULTILINE)
    return float(found.group(1)) if response.status_code == 200 and found else None
