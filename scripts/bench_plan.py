"""Times `megamoe plan` as a person meets it: a whole process, interpreter start included.

Usage: python scripts/bench_plan.py DEPLOY [RUNS]. Prints one JSON object; exits 1 when the median is 1 second or more.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time


def main(deploy: str, runs: int) -> int:
    """Runs the verb `runs` times after one warm-up; seconds of wall clock and of this process's children's CPU."""
    wall, cpu = [], []
    for number in range(runs + 1):
        before, start = os.times(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "megamoe", "plan", deploy, "--json"], capture_output=True, check=False
        )
        elapsed, after = time.perf_counter() - start, os.times()
        if done.returncode not in (0, 2):
            print(done.stderr.decode(errors="replace"), file=sys.stderr)
            return 1
        if number:
            wall.append(elapsed)
            cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
    median = round(statistics.median(wall), 3)
    result = {
        "runs": runs,
        "wall_s_median": median,
        "wall_s_max": round(max(wall), 3),
        "cpu_s_median": round(statistics.median(cpu), 3),
        "load_1min": round(os.getloadavg()[0], 1),
        "python": sys.version.split()[0],
    }
    print(json.dumps(result))
    return 0 if median < 1 else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10))
