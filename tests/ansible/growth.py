"""Measures how a roll-out grows: plays on fake nodes, tasks per node, waves, seconds, CPU of the controller.

    python tests/ansible/growth.py [--check] NODES [NODES ...]

With --check nothing is simulated beyond preflight, preparation and decision, so that hundreds of nodes take minutes.
The table of ansible/docs/growth.md is what this prints.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "simulation"))

from simulated import FakeCluster, Played


def measure(nodes: int, wave: int, folder: Path, *options: str) -> tuple[FakeCluster, Played, float]:
    """One site.yml on a new cluster: the cluster, the run and its CPU seconds."""
    cluster = FakeCluster(folder, nodes=nodes, wave=wave)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    played = cluster.play("site.yml", *options, timeout_s=7200)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cluster, played, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=int, nargs="+")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--wave", type=int, default=8)
    given = parser.parse_args()
    print("| nodes | wave | waves | tasks per node | seconds | CPU seconds | CPU s per node |")
    print("|---|---|---|---|---|---|---|")
    for nodes in given.nodes:
        with tempfile.TemporaryDirectory() as folder:
            options = ("--check",) if given.check else ()
            cluster, played, cpu = measure(nodes, given.wave, Path(folder) / "c", *options)
            if played.returncode:
                print(played.output[-2000:], file=sys.stderr)
                return 1
            tasks = {played.tasks_by_host()[n] for n in cluster.nodes}
            row = [nodes, given.wave, played.plays("Roll out in waves"), "/".join(map(str, sorted(tasks)))]
            print("| " + " | ".join(map(str, [*row, round(played.seconds), round(cpu), round(cpu / nodes, 1)])) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
