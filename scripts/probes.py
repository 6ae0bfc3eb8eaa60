"""Probes of the scheduler: what only wastes work passes an equality test, so here are the ratios.

    python scripts/probes.py             prints name, value, target and verdict of each; exits 1 when one misses
    python scripts/probes.py --counted   leaves out those that time something
    python scripts/probes.py --timed     only those
    --json                               one JSON array instead of lines

The probes are functions of bench/probes that take nothing and yield `Finding`s. tests/properties/test_probes.py runs
those that count, `scripts/accept --only scheduler` those that time.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.probes.counted import COUNTED
from bench.probes.timed import TIMED


def main(arguments: list[str]) -> int:
    probes = COUNTED if "--counted" in arguments else TIMED if "--timed" in arguments else COUNTED + TIMED
    findings = [finding for probe in probes for finding in probe()]
    if "--json" in arguments:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(finding)
    return 0 if all(finding.passed for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
