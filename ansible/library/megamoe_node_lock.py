"""One playbook at a time on a node: a lock file that names its owner."""

from __future__ import annotations

DOCUMENTATION = r"""
module: megamoe_node_lock
short_description: Take or give back the lock of a node
description: >-
  Two playbooks that change one node at once leave it in a state that neither recorded. The file is made whole and in
  one step, so of two that come together one wins. Who holds it is returned; whether that owner still lives only the
  controller can tell, and it then asks again with C(replace).
options:
  path:
    description: The lock file; on a file system that a reboot empties.
    type: str
    required: true
  owner:
    description: What identifies this playbook (key id) and what a person wants to know about it.
    type: dict
    required: true
  state:
    description: C(held) takes it or, when it is ours, renews it. C(free) removes it when it is ours.
    type: str
    choices: [held, free]
    required: true
  replace:
    description: Identity of a holder that is known to have ended, whose lock is taken over.
    type: str
    default: ""
"""

import json
import os
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule


def holder_of(path):
    """Who holds the lock, {} when nobody does. A torn file is a holder without a name, never nobody."""
    try:
        with open(path) as handle:
            return json.load(handle)
    except FileNotFoundError:
        return {}
    except ValueError:
        return {"id": "unreadable", "who": f"an owner that left {path} unreadable"}


def written(path, owner):
    """Writes the owner to a new file beside path, whole, and returns its name."""
    handle, name = tempfile.mkstemp(prefix=".megamoe-lock-", dir=os.path.dirname(path))
    with os.fdopen(handle, "w") as out:
        json.dump({**owner, "renewed_at": int(time.time())}, out)
    return name


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "required": True},
            "owner": {"type": "dict", "required": True},
            "state": {"type": "str", "choices": ["held", "free"], "required": True},
            "replace": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    path, owner = module.params["path"], module.params["owner"]
    holder = holder_of(path)
    mine = holder.get("id") == owner["id"]
    if module.params["state"] == "free":
        if mine and not module.check_mode:
            os.unlink(path)
        module.exit_json(changed=False, held=False)
    if module.check_mode:
        module.exit_json(changed=False, held=not holder or mine, holder=holder or owner, renewed=mine)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = written(path, owner)
    try:
        if mine or (holder and holder.get("id") == module.params["replace"]):
            os.replace(fresh, path)
            module.exit_json(changed=False, held=True, holder=owner, taken_over=not mine, renewed=mine)
        try:
            os.link(fresh, path)  # fails when the file exists: of two at once, one gets it
        except FileExistsError:
            holder = holder_of(path) or {"id": "unknown", "who": "an owner that has just gone"}
            age = int(time.time()) - int(holder.get("renewed_at", 0))
            module.exit_json(changed=False, held=False, holder=holder, age_s=age, renewed=False)
        module.exit_json(changed=False, held=True, holder=owner, taken_over=False, renewed=False)
    finally:
        if os.path.exists(fresh):
            os.unlink(fresh)


if __name__ == "__main__":
    main()
