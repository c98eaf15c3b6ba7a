"""Measures `megamoe diagnose` on generated logs: MB/s of one core and peak memory. Prints what it ran on.

Usage: python scripts/bench_diagnose.py [MEGABYTES]
"""

from __future__ import annotations

import platform
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from megamoe.diagnose.judge import judge
from megamoe.diagnose.scan import scan

PLAIN = ("{t} [rank {r}] INFO scheduler: step {n} prefill 0 decode 31 tokens 8192 kv {n} blocks free\n",
         "{t} [rank {r}] INFO: 127.0.0.1:{n} - \"POST /v1/completions HTTP/1.1\" queued\n",
         "{t} [rank {r}] DEBUG moe layer {r} tokens {n} experts local 48 dispatch 1.23 ms combine 0.98 ms\n")
VICTIM = "{t} [rank {r}] watchdog: no progress for {n} s, dumping stacks\n"
CAUSE = "{t} [rank {r}] RuntimeError: HIP error: out of memory. Tried to allocate {n} MiB\n"
HEAD = "(Worker_TP{r} pid={n}) ERROR 12-01 {t} [core.py:708] "
STACK = "".join(f"{HEAD}{line}\n" for line in (
    "Traceback (most recent call last):",
    *["  File \"/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py\", line {n}, in run_engine_core",
      "    engine_core.run_busy_loop()"] * 8,
    "ValueError: odd value {n}"))
# What a hit is called, the hit, and the share of entries that are one.
ROWS = (("name a victim", VICTIM, 0.0), ("name a victim", VICTIM, 0.001), ("name a victim", VICTIM, 0.01),
        ("name a victim", VICTIM, 0.25), ("name a victim", VICTIM, 1.0), ("name a cause", CAUSE, 0.01),
        ("name a cause", CAUSE, 0.25), ("are stacks of 18 lines", STACK, 0.01), ("are stacks of 18 lines", STACK, 1.0))


def write_log(path: Path, megabytes: int, hit: str, hit_share: float) -> None:
    """A log of random ordinary lines; `hit_share` of them are `hit`, which holds words of the catalogue."""
    rng = random.Random(1)
    entries = 60000 if hit is not STACK else 4000  # some megabytes, which are repeated
    data = "".join((hit if rng.random() < hit_share else rng.choice(PLAIN)).format(
        t=f"10:{i // 60 % 60:02d}:{i % 60:02d}", r=rng.randrange(8), n=rng.randrange(99999))
        for i in range(entries)).encode()
    with path.open("wb") as out:
        for _ in range(max(1, (megabytes << 20) // len(data))):
            out.write(data)


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {megabytes} MB per log")
    with tempfile.TemporaryDirectory() as directory:
        for name, hit, share in ROWS:
            path = Path(directory) / "engine.log"
            write_log(path, megabytes, hit, share)
            begin = time.process_time()
            outcome = judge(scan([str(path)]), {})
            spent = time.process_time() - begin
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"{share:7.1%} of entries {name}: "
                  f"{path.stat().st_size / 1e6 / spent:7.1f} MB/s of CPU, "
                  f"peak {peak} MiB, class {outcome.data['class']}")


if __name__ == "__main__":
    main()
