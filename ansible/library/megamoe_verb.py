"""Runs verbs of the megamoe command on the controller with a deployment and a node's facts in private files."""

from __future__ import annotations

DOCUMENTATION = r"""
module: megamoe_verb
short_description: Ask megamoe plan, preflight or verify-deploy about one node
description: >-
  Writes the deployment, the node's facts and, for verify-deploy, the inspection of its container to files that only
  this user reads, runs the verbs in order and removes the files. The first verb that refuses fails the task with its
  own findings; its envelope is in stdout.
options:
  cli:
    description: The megamoe command.
    type: str
    default: megamoe
  verbs:
    description: Verbs in the order in which they run.
    type: list
    elements: str
    choices: [preflight, plan, verify-deploy]
    required: true
  deploy:
    description: The DEPLOY mapping.
    type: dict
    required: true
  facts:
    description: Facts of the node.
    type: dict
    required: true
  inspect:
    description: The node's container as the engine inspects it, for verify-deploy.
    type: dict
  judge:
    description: Fail when a verb refuses. Otherwise the envelopes are returned and the caller judges.
    type: bool
    default: true
"""

import json
import os
import shutil
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule


def sentence(finding):
    """One finding as one line."""
    end = "" if finding["fix"].endswith((".", "?")) else "."
    return "[{code}] {what}: {why}. Fix: {fix}".format(**finding) + end


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "cli": {"type": "str", "default": "megamoe"},
            "verbs": {
                "type": "list",
                "elements": "str",
                "choices": ["preflight", "plan", "verify-deploy"],
                "required": True,
            },
            "deploy": {"type": "dict", "required": True},
            "facts": {"type": "dict", "required": True},
            "inspect": {"type": "dict"},
            "judge": {"type": "bool", "default": True},
        },
        supports_check_mode=True,  # nothing of a node is touched
    )
    cli = shutil.which(module.params["cli"])
    if cli is None:
        module.fail_json(
            msg=f"{module.params['cli']} is not on the controller's PATH. The rules of a launch are its rules, so "
            "nothing can be planned. `pip install .` in the checkout, or set serve_cli to its path."
        )
    folder = tempfile.mkdtemp(prefix="megamoe-verb-")  # mode 0700
    envelopes = {}
    try:
        for name in ("deploy", "facts", "inspect"):
            with open(os.path.join(folder, name), "w") as handle:
                json.dump(module.params[name], handle)
        for verb in module.params["verbs"]:
            argv = [cli, verb, os.path.join(folder, "deploy"), "--facts", os.path.join(folder, "facts"), "--json"]
            if verb == "verify-deploy":
                argv += ["--inspect", os.path.join(folder, "inspect")]
            done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
            text = done.stdout.decode(errors="replace")
            try:
                envelopes[verb] = json.loads(text)
            except ValueError:
                module.fail_json(
                    msg=f"megamoe {verb} ended with {done.returncode} and printed no envelope: "
                    + (done.stderr.decode(errors="replace") or text)[-400:]
                )
            host = module.params["deploy"].get("host", "this node")
            errors = [sentence(f) for f in envelopes[verb]["findings"] if f["severity"] == "error"]
            if done.returncode and module.params["judge"]:
                module.fail_json(
                    msg=f"{host}: megamoe {verb} refused: " + " ".join(errors or [envelopes[verb]["summary"]]),
                    stdout=text,
                    envelopes=envelopes,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    module.exit_json(changed=False, envelopes=envelopes)


if __name__ == "__main__":
    main()
