"""Starts a script in two processes on this machine, as `torchrun` does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# With the oldest libraries a process sometimes aborts with this while the interpreter exits, its work all done.
_ABORT_AT_EXIT = "terminate called without an active exception"


def run_two_processes(arguments: list[str], *, output: Path, cwd: Path) -> subprocess.CompletedProcess:
    """Runs `arguments` (a script and its flags) in two processes; `output` is removed before each attempt."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *arguments]
    for _ in range(4):
        shutil.rmtree(output, ignore_errors=True)
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        if _ABORT_AT_EXIT not in result.stderr:
            break
    return result
