#!/usr/bin/env python3
"""Dynamic inventory of the rehearsal: reads .state/rehearsal/cluster.json, which `megamoe rehearse` writes.

Only what a run decides (addresses, key, image digest, fault) comes from here; all else is in group_vars/.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def inventory() -> dict[str, object]:
    """The inventory in Ansible's JSON form; exits 4 with a sentence when no rehearsal is up."""
    path = Path(os.environ.get("MEGAMOE_REHEARSAL_CLUSTER", str(ROOT / ".state/rehearsal/cluster.json")))
    if not path.is_file():
        sys.exit(
            f"error: {path} is missing\n  why: addresses and image digest of the rehearsal are written there\n"
            "  fix: run `make rehearse` first"
        )
    cluster = json.loads(path.read_text())
    ssh = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": cluster["key"],
        # The host keys of this run only, and one connection per host for the whole play.
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={cluster['known_hosts']} -o StrictHostKeyChecking=yes",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    hosts = {**cluster["nodes"], **cluster["gateway"]}
    return {
        "_meta": {"hostvars": {name: {"ansible_host": address, **ssh} for name, address in hosts.items()}},
        "megamoe_nodes": {"hosts": sorted(cluster["nodes"], key=lambda n: (len(n), n))},
        "megamoe_gateway": {"hosts": sorted(cluster["gateway"])},
        "all": {"vars": {
            "megamoe_rehearsal_image": cluster["image"],
            "megamoe_rehearsal_env": cluster["engine_env"],
            "megamoe_rehearsal_dataset": cluster["dataset"],
            "megamoe_rehearsal_fewshot": cluster["fewshot"],
            "megamoe_rehearsal_baseline": cluster["baseline"],
            "megamoe_rehearsal_report_dir": cluster["report_dir"],
        }},
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(inventory() if "--host" not in sys.argv else {}, indent=2))
