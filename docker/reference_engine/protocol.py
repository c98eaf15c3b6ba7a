"""What a request may say: JSON body in, checked values out. Every refusal is a 4xx with the field that caused it.

Unknown fields are refused, unlike ATOM, which ignores them: a client that asks for logprobs and gets none draws wrong
conclusions. Fields that clients send with their neutral value (n=1, echo=false, ...) are accepted with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reference_engine.sampling import Sampling

MAX_PROMPTS = 64
MAX_STOPS = 16
DEFAULT_MAX_TOKENS = 8192  # ATOM's, entrypoints/openai/protocol.py; cut to what fits, as nobody asked for it
# field -> the values under which it changes nothing
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1, None),
    "best_of": (1, None),
    "echo": (False, None),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "suffix": (None, ""),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "logit_bias": (None, {}),
    "repetition_penalty": (1, None),
    "min_p": (0, None),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "kv_transfer_params": (None,),
    "chat_template_kwargs": (None, {}),
    "min_tokens": (0, None),
}
_SHARED = {
    "model",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "ignore_eos",
    "user",
}


class ApiError(Exception):
    """A refusal as the client sees it."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server can take. Tokens; token_ids are below `vocab`."""

    served_name: str
    max_model_len: int
    vocab: int


@dataclass(frozen=True, slots=True)
class Request:
    prompts: list[list[int]]
    sampling: list[Sampling]  # one per prompt: the default max_tokens depends on the prompt's length
    stream: bool
    stream_usage: bool


def _typed(body: dict[str, Any], field: str, kinds: tuple[type, ...], default: Any) -> Any:
    value = body.get(field)
    if value is None:
        return default
    # bool is an int to Python, but `"max_tokens": true` is a mistake.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(k.__name__ for k in kinds)
        raise ApiError(400, "wrong_type", f"{field} must be {names}, got {type(value).__name__}", field)
    return value


def _ranged(body: dict[str, Any], field: str, kinds: tuple[type, ...], low: float, high: float, default: Any) -> Any:
    value = _typed(body, field, kinds, default)
    if value is not None and not low <= value <= high:  # NaN fails this too
        raise ApiError(400, "out_of_range", f"{field} must be between {low:g} and {high:g}, got {value}", field)
    return value


def _check_fields(body: dict[str, Any], known: set[str]) -> None:
    for field, value in body.items():
        if field in known:
            continue
        if field not in NEUTRAL:
            raise ApiError(400, "unsupported_field", f"{field} is not supported by this server", field)
        if not any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in NEUTRAL[field]
        ):
            raise ApiError(
                400,
                "unsupported_value",
                f"{field}={value!r} is not supported by this server; "
                f"allowed: {', '.join(repr(v) for v in NEUTRAL[field])}",
                field,
            )


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise ApiError(400, "wrong_type", "stop must be a string or a list of strings", "stop")
    if len(stops) > MAX_STOPS:
        raise ApiError(400, "out_of_range", f"stop holds {len(stops)} strings, at most {MAX_STOPS} are allowed", "stop")
    return tuple(s for s in stops if s)


def _request(body: dict[str, Any], prompts: list[list[int]], limits: Limits) -> Request:
    model = _typed(body, "model", (str,), limits.served_name)
    if model.rstrip("/") != limits.served_name.rstrip("/"):
        # 400 and not 404, as ATOM answers
        raise ApiError(
            400,
            "model_not_found",
            f"model {model!r} is not served here; this server has {limits.served_name!r}",
            "model",
        )
    field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    asked = _typed(body, field, (int,), None)
    if asked is not None and asked < 1:
        raise ApiError(400, "out_of_range", f"{field} must be at least 1, got {asked}", field)
    temperature = float(_ranged(body, "temperature", (int, float), 0, 100, 1.0))
    top_p = float(_ranged(body, "top_p", (int, float), 0, 1, 1.0))
    if top_p == 0:
        raise ApiError(
            400, "out_of_range", "top_p must be greater than 0; for greedy decoding use temperature 0", "top_p"
        )
    top_k = _ranged(body, "top_k", (int,), -1, limits.vocab, 0)
    seed = _ranged(body, "seed", (int,), -(2**63), 2**64 - 1, None)
    stream = _typed(body, "stream", (bool,), False)
    options = _typed(body, "stream_options", (dict,), {})
    unknown = set(options) - {"include_usage"}
    if unknown:
        raise ApiError(
            400, "unsupported_field", f"stream_options.{min(unknown)} is not supported by this server", "stream_options"
        )
    stops, ignore_eos = _stops(body), _typed(body, "ignore_eos", (bool,), False)
    _typed(body, "user", (str,), None)
    sampling = []
    for ids in prompts:
        room = limits.max_model_len - len(ids)
        if room < (asked or 1):
            raise ApiError(
                400,
                "context_length_exceeded",
                f"the prompt has {len(ids)} tokens and {asked or 1} are to be generated, "
                f"together {len(ids) + (asked or 1)}; this server's maximum context length is {limits.max_model_len}",
                field if len(ids) < limits.max_model_len else "prompt",
            )
        sampling.append(
            Sampling(asked or min(DEFAULT_MAX_TOKENS, room), temperature, top_p, max(top_k, 0), seed, stops, ignore_eos)
        )
    return Request(prompts, sampling, stream, stream and _typed(options, "include_usage", (bool,), False))


def completion(body: dict[str, Any], limits: Limits, encode: Callable[[str], list[int]]) -> Request:
    """/v1/completions: prompt is a text, a list of texts, a list of token ids, or a list of such lists.

    Raises:
        ApiError: 400, with the field at fault.
    """
    _check_fields(body, _SHARED | {"prompt"})
    prompt = body.get("prompt")
    if prompt is None:
        raise ApiError(400, "missing_field", "prompt is required", "prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(_is_id(p) for p in prompt)):
        prompt = [prompt]
    if not isinstance(prompt, list) or not all(
        isinstance(p, str) or (isinstance(p, list) and all(_is_id(t) for t in p)) for p in prompt
    ):
        raise ApiError(
            400,
            "wrong_type",
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists",
            "prompt",
        )
    if not 1 <= len(prompt) <= MAX_PROMPTS:
        raise ApiError(
            400, "out_of_range", f"prompt holds {len(prompt)} prompts, 1 to {MAX_PROMPTS} are allowed", "prompt"
        )
    prompts = []
    for one in prompt:
        ids = encode(one) if isinstance(one, str) else one
        if not ids:
            raise ApiError(400, "empty_prompt", "a prompt is empty", "prompt")
        wrong = next((t for t in ids if not 0 <= t < limits.vocab), None)
        if wrong is not None:
            raise ApiError(
                400, "out_of_range", f"token id {wrong} is not below the vocabulary's {limits.vocab}", "prompt"
            )
        prompts.append(ids)
    return _request(body, prompts, limits)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


ROLES = ("system", "user", "assistant")


def chat(body: dict[str, Any], limits: Limits, encode: Callable[[list[dict[str, Any]]], list[int]]) -> Request:
    """/v1/chat/completions: messages of role and content, content a text or a list of text parts.

    Raises:
        ApiError: 400, with the field at fault.
    """
    _check_fields(body, _SHARED | {"messages"})
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(
            400,
            "wrong_type" if messages else "missing_field",
            "messages must be a list of at least one message",
            "messages",
        )
    plain = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ApiError(400, "wrong_type", f"{where} must be an object", "messages")
        if message.get("role") not in ROLES:
            raise ApiError(
                400,
                "unsupported_value",
                f"{where}.role must be one of {', '.join(ROLES)}, got {message.get('role')!r}",
                "messages",
            )
        extra = set(message) - {"role", "content", "name"}
        if extra:
            raise ApiError(
                400, "unsupported_field", f"{where}.{min(extra)} is not supported by this server", "messages"
            )
        plain.append({"role": message["role"], "content": _content(message.get("content"), where)})
    try:
        ids = encode(plain)
    except ValueError as error:
        raise ApiError(400, "chat_template", str(error), "messages") from error
    return _request(body, [ids], limits)


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content
    ):
        return "\n".join(p["text"] for p in content)
    raise ApiError(
        400,
        "wrong_type",
        f"{where}.content must be a string or a list of text parts; images are not supported",
        "messages",
    )
