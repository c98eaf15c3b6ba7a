"""Runs inside lm-eval's own environment: `python harness.py CONFIG.json`. Imports nothing of megamoe but its siblings.

lm-evaluation-harness builds the prompts, filters and scores. This file replaces only its request loop, so that
answers are journalled as they come (resume), retries are counted by cause, progress is told, and a
broken model is stopped early.
One JSON object per line on stdout; the API key arrives as OPENAI_API_KEY, never in CONFIG or argv.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from extract import FILTERS, is_correct, is_empty
from lm_eval import simple_evaluate
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable
from sequential import EarlyFail

EARLY_FAIL_EXIT = 11


class StoppedEarly(Exception):
    pass


class NoAnswer(Exception):
    """A request without an answer after all retries."""


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


@dataclass(slots=True)
class Tally:
    """Counts of one session: answers at hand, right ones among them, and how many the early stop has been fed."""

    resumed: int  # answers that an earlier session left in the journal
    started: float  # monotonic seconds
    scored: int = 0
    right: int = 0
    fed: int = 0
    told: float = 0.0  # when progress was last said, monotonic seconds


class Journalled:
    """Mixin over lm-eval's API models: `generate_until` with a journal, counted retries and an early stop."""

    settings: dict[str, Any]
    retried = 0
    failed = 0
    # Of lm_eval.models.api_models.TemplateAPI (0.4.12), which the classes below add; its package has no types.
    _create_payload: Any
    create_message: Any
    eos_string: Any
    _seed: Any
    base_url: Any
    header: Any

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return asyncio.run(self._run(requests))

    async def _run(self, requests: list[Any]) -> list[str]:
        cfg = self.settings
        journal = Path(cfg["journal"])
        self.rows: dict[int, dict[str, Any]] = {}
        if journal.exists():
            for line in journal.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the line that was being written when the last session was cut
                if not row.get("error"):
                    self.rows[row["doc_id"]] = row
        # A seeded shuffle: the early stop needs an order that says nothing about difficulty or length.
        order = list(range(len(requests)))
        random.Random(cfg["seed"]).shuffle(order)
        early = EarlyFail(cfg["stop_floor"], cfg["stop_alpha"]) if cfg.get("stop_floor") else None
        state = Tally(resumed=len(self.rows), started=time.monotonic())
        queue: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        for position, index in enumerate(order):
            if requests[index].doc_id not in self.rows:
                queue.put_nowait((position, index))
        # One slow answer holds up the in-order test; asking far past it would spend questions on a broken model.
        ahead = max(32, 2 * cfg["concurrency"])
        score = FILTERS[cfg["filter"]]

        def correct(index: int) -> bool:
            request = requests[index]
            right: bool = is_correct(score(self.rows[request.doc_id]["text"] or ""), request.doc["answer"])
            return right

        for index in order:
            if requests[index].doc_id in self.rows:
                state.scored += 1
                state.right += correct(index)

        def progress(force: bool = False) -> None:
            now = time.monotonic()
            if not force and now - state.told < cfg["progress_s"]:
                return
            state.told = now
            fresh = state.scored - state.resumed
            left = (len(order) - state.scored) * (now - state.started) / fresh if fresh > 0 else None
            say(
                event="progress",
                done=state.scored,
                total=len(order),
                right=state.right,
                retried=self.retried,
                failed=self.failed,
                left_s=left,
            )

        def feed() -> None:
            while early and state.fed < len(order) and requests[order[state.fed]].doc_id in self.rows:
                index = order[state.fed]
                state.fed += 1
                if is_empty(self.rows[requests[index].doc_id]["text"]):
                    continue  # no answer is no evidence about the model; the gate judges these by their share
                stop = early.add(correct(index))
                if stop:
                    progress(True)
                    say(
                        event="early_fail",
                        answers=early.stopped_at,
                        right=early.right,
                        floor=early.floor,
                        alpha=early.alpha,
                    )
                    raise StoppedEarly

        with journal.open("a", encoding="utf-8") as log:
            connector = aiohttp.TCPConnector(limit=cfg["concurrency"])
            async with aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=cfg["timeout_s"])
            ) as session:

                async def worker() -> None:
                    while not queue.empty():
                        position, index = queue.get_nowait()
                        while early and position - state.fed > ahead:
                            await asyncio.sleep(0.02)
                        request = requests[index]
                        row = await self._ask(session, request)
                        self.rows[request.doc_id] = row
                        log.write(json.dumps(row) + "\n")
                        log.flush()
                        state.scored += 1
                        state.right += correct(index)
                        feed()
                        progress()

                feed()
                tasks = [asyncio.create_task(worker()) for _ in range(cfg["concurrency"])]
                try:
                    await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()
        progress(True)
        return [self.rows[r.doc_id]["text"] or "" for r in requests]

    async def _ask(self, session: aiohttp.ClientSession, request: Any) -> dict[str, Any]:
        cfg = self.settings
        context, gen_kwargs = request.args
        payload = self._create_payload(
            self.create_message([context]),
            generate=True,
            gen_kwargs=copy.deepcopy(gen_kwargs),
            seed=self._seed,
            eos=self.eos_string,
        )
        if isinstance(payload.get("prompt"), list) and len(payload["prompt"]) == 1:
            payload["prompt"] = payload["prompt"][0]  # ATOM takes one string only (atom/entrypoints/openai/protocol.py)
        begun = time.monotonic()
        causes: list[str] = []
        for attempt in range(cfg["max_retries"] + 1):
            if attempt:
                self.retried += attempt == 1
                await asyncio.sleep(min(10.0, cfg["backoff_s"] * 2 ** (attempt - 1)))
            try:
                async with session.post(self.base_url, json=payload, headers=self.header) as response:
                    if response.status != 200:
                        causes.append(f"HTTP {response.status}")
                        if response.status in (400, 401, 403, 404, 422):
                            say(event="refused", status=response.status, body=(await response.text())[:300])
                            break  # asking again changes nothing
                    else:
                        body = await response.json(content_type=None)
                        choice = body["choices"][0]
                        text = choice["message"]["content"] if "message" in choice else choice["text"]
                        if text is not None and not isinstance(text, str):
                            raise TypeError(f"the text is {type(text).__name__}")
                        return {
                            "doc_id": request.doc_id,
                            "text": text,
                            "finish_reason": choice.get("finish_reason"),
                            "attempts": attempt + 1,
                            "causes": causes,
                            "seconds": round(time.monotonic() - begun, 3),
                            "session": cfg["session"],
                        }
            except aiohttp.ClientConnectorError as error:
                refused = isinstance(error.os_error, ConnectionRefusedError)
                causes.append("connection refused" if refused else "cannot connect")
            except TimeoutError:
                causes.append("timeout")
            except aiohttp.ClientError as error:
                causes.append(type(error).__name__)
            except (ValueError, KeyError, IndexError, TypeError):
                causes.append("answer is not a completion")
        self.failed += 1
        return {
            "doc_id": request.doc_id,
            "text": None,
            "error": causes[-1],
            "attempts": len(causes),
            "causes": causes,
            "session": cfg["session"],
        }


class Completions(Journalled, LocalCompletionsAPI):  # type: ignore[misc] # lm-eval's package has no types
    pass


class Chat(Journalled, LocalChatCompletion):  # type: ignore[misc] # as above
    pass


def main() -> int:
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    out = Path(config["out"])
    kind = Chat if config["endpoint"] == "chat" else Completions
    args = {
        "model": config["model"],
        "base_url": config["url"],
        "num_concurrent": config["concurrency"],
        "max_retries": config["max_retries"],
        "tokenized_requests": False,
        "max_gen_toks": config["max_gen_toks"],
    }
    model = kind(**args, tokenizer_backend=None)
    model.settings = config
    begun = time.time()
    stopped = False
    try:
        results = simple_evaluate(
            model=model,
            tasks=[config["task"]],
            num_fewshot=config["num_fewshot"],
            limit=config["limit"],
            task_manager=TaskManager(include_path=config["task_dir"], include_defaults=False),
            bootstrap_iters=0,
            apply_chat_template=config["endpoint"] == "chat",
            fewshot_as_multiturn=config["endpoint"] == "chat",
            log_samples=True,
        )
    except StoppedEarly:
        results, stopped = None, True
    if stopped:
        return EARLY_FAIL_EXIT
    samples = results.pop("samples")[config["task"]]
    with (out / "samples.jsonl").open("w", encoding="utf-8") as lines:
        for row in samples:
            asked = model.rows[row["doc_id"]]
            row = {
                **row,
                "run_id": config["run_id"],
                "finish_reason": asked.get("finish_reason"),
                "attempts": asked.get("attempts"),
            }
            if asked.get("error"):
                row = {**row, "error": asked["error"], "resps": [[None]]}
            lines.write(json.dumps(row, default=handle_non_serializable) + "\n")
    results["config"] |= {
        "model": "local-chat-completions" if config["endpoint"] == "chat" else "local-completions",
        "model_args": ",".join(f"{k}={v}" for k, v in args.items()),
        "limit": config["limit"],
    }
    results |= {"run_id": config["run_id"], "date": config["run_started"], "session_began": begun}
    temporary = out / "result.json.part"
    temporary.write_text(json.dumps(results, default=handle_non_serializable, indent=1))
    temporary.replace(out / "result.json")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OPENAI_API_KEY", "none")
    sys.exit(main())
