"""`python -m kernel_lane.capture FLYDSL CASE OUT [--golden FILE]`: called by `megamoe kernels capture` in flydsl's
Python.

Prints one JSON object on its last line; a Problem is printed the same way and exits with its code.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from megamoe_atom.problem import Problem


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kernel_lane.capture")
    parser.add_argument("flydsl", type=Path)
    parser.add_argument("case")
    parser.add_argument("out", type=Path)
    parser.add_argument("--golden", type=Path, default=None)
    options = parser.parse_args()
    try:
        from kernel_lane.capture.cases import Case
        from kernel_lane.capture.parts import choose
        from kernel_lane.capture.parts_session import capture_part
        from kernel_lane.capture.session import capture

        case = choose(options.case)
        if isinstance(case, Case):
            figures = capture(case, options.flydsl, options.out, golden=options.golden)
        else:
            figures = capture_part(case, options.flydsl, options.out, golden=options.golden)
    except Problem as problem:
        print("\n" + json.dumps({"problem": [asdict(r) for r in problem.reasons], "exit": int(problem.exit_code)}))
        return int(problem.exit_code)
    print("\n" + json.dumps(figures))
    return 0


sys.exit(main())
