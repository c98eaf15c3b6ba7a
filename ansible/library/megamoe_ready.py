"""Waits until a server answers a completion, and no longer than it is known that it never will."""

from __future__ import annotations

DOCUMENTATION = r"""
module: megamoe_ready
short_description: Wait for a real completion; fail at once when the container has ended
description:
  - Readiness is a completion with checked content, since C(/health) and C(/v1/models) answer while the engine cannot.
  - A container that ended before it was ready (a refused plan, a failed self-test) fails the task at once with the
    first cause from its log, instead of being waited for while it is started again and again.
  - So does a server that completes three times and never as expected; at temperature 0 waiting changes nothing.
options:
  url:
    description: Address of the server without a path.
    type: str
    required: true
  container:
    description: Name of the container to watch.
    type: str
    required: true
  prompt:
    description: Prompt of the completion.
    type: str
    required: true
  expect:
    description: Regular expression that the completion's text must match.
    type: str
    required: true
  timeout_s:
    description: Seconds to wait.
    type: int
    required: true
"""

import json
import re
import subprocess
import time
import urllib.error
import urllib.request

from ansible.module_utils.basic import AnsibleModule

POLL_S = 2
WRONG_ANSWERS = 3
LOG_LINES = 400


def ask(url, body=None, timeout_s=60):
    """JSON of a GET, or of a POST when there is a body. A server that listens and does not answer is given up on."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.load(answer)


def probe(url, prompt, expect):
    """True and the text when it completes as expected, False and the text when not, None and the error without one."""
    try:
        models = ask(url + "/v1/models", timeout_s=10).get("data") or []
        if not models:
            return None, "it lists no model"
        body = {"model": models[0]["id"], "prompt": prompt, "max_tokens": 8, "temperature": 0}
        text = ask(url + "/v1/completions", body)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return None, f"HTTP {error.code}: {error.read(300).decode(errors='replace')}"
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return None, f"{type(error).__name__}: {error}"
    return bool(re.search(expect, text)), text


def docker(*argv):
    """Standard output and error of docker, or None when it could not be asked."""
    try:
        done = subprocess.run(
            ["docker", *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def ended(state):
    """Why this container will not become ready by waiting, or None. state: one object of `docker inspect`."""
    now = state["State"]
    restarts = int(state.get("RestartCount") or 0)
    if restarts:
        return f"it ended and was started again {restarts} time{'' if restarts == 1 else 's'}"
    if now["Status"] in ("exited", "dead"):
        return f"it ended with exit code {now.get('ExitCode')}"
    return None


def first_cause(log):
    """What the log says went wrong: our own error with its why and fix, else the last exception, else the last line."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if re.match(r"(error|REFUSED):", line):
            why = [other.strip() for other in lines[index + 1 : index + 3] if re.match(r"\s+(why|fix):", other)]
            return "; ".join([line, *why])
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (raised or lines or ["it logged nothing"])[-1]


def main():
    text = {"type": "str", "required": True}
    module = AnsibleModule(
        {
            "url": text,
            "container": text,
            "prompt": text,
            "expect": text,
            "timeout_s": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    p = module.params
    if module.check_mode:
        module.exit_json(changed=False)
    begun, watched, wrong = time.monotonic(), None, 0
    while True:
        ready, said = probe(p["url"], p["prompt"], p["expect"])
        waited = round(time.monotonic() - begun, 1)
        if ready:
            module.exit_json(changed=False, text=said, waited_s=waited)
        wrong += ready is False
        if wrong == WRONG_ANSWERS:
            module.fail_json(
                msg=f"{p['container']} completes, but wrongly: {p['prompt']!r} gave {said!r}, expected /{p['expect']}/",
                waited_s=waited,
            )
        state = json.loads(docker("inspect", "--type", "container", p["container"]) or "[]")
        why = ended(state[0]) if state else None
        # A supervisor outside the engine starts it again without a count: another start is an end that was missed.
        if state and why is None and watched not in (None, state[0]["State"]["StartedAt"]):
            why = "it ended and was started again"
        if why:
            cause = first_cause(docker("logs", "--tail", str(LOG_LINES), p["container"]) or "")
            module.fail_json(
                msg=f"{p['container']} will not serve: {why} before it was ready. {cause}", waited_s=waited
            )
        watched = state[0]["State"]["StartedAt"] if state else watched
        if waited > p["timeout_s"]:
            module.fail_json(
                msg=f"{p['container']} did not answer a completion in {p['timeout_s']} s; the last try: {said}",
                waited_s=waited,
            )
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
