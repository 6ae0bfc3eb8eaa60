from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # tests.fakes is shared with other folders
    sys.path.insert(0, str(ROOT))
