"""The benchmark script runs, prints its rows and finds the losses equal. No time is asserted."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_pretrain_step_quick():
    # The checkout on the path, as `python -m pytest` has it here; after `pip install -e .` it is there anyway.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "pretrain_step.py"), "--quick", "--threads", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    rows = run.stdout.splitlines()
    for objective in ("RetroMAE", "RetroMAE, decoder_prediction_rate 0.4", "DupMAE, bow_loss_weight 0.1"):
        for measured in ("step (s)", "memory (MB)"):
            assert sum(row.startswith(f"{objective}: {measured}") for row in rows) == 1
    assert sum(row.startswith("collation, 8 texts x 128 tokens (s)") for row in rows) == 1

    differences = [float(number) for number in re.findall(r"losses differ by (\S+),", run.stdout)]
    assert len(differences) == 6 and max(differences) <= 1e-4
