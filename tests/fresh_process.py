"""Runs code as somebody else would: another process, another folder, and none of this project's modules."""

import subprocess
import sys
from pathlib import Path

_OURS = (
    "retrieval_pretraining",
    "configuration_retromae",
    "modeling_retromae",
    "configuration_gur",
    "modeling_gur",
    "linear_cross_entropy",
)
_OPTIONAL = ("rjieba", "bm25s")

# What is put before the code of a process in which neither our package nor the optional ones can be imported.
BLOCK_OURS = (
    "import sys\n"
    "class Block:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    f"        if name.split('.')[0] in {(*_OURS, *_OPTIONAL)!r}:\n"
    "            raise ImportError('not here: ' + name)\n"
    "sys.meta_path.insert(0, Block())\n"
)


def in_fresh_process(code: str, folder: Path, tmp_path: Path) -> str:
    """Runs `code`, which finds the path of `folder` under that name, in `tmp_path`; returns what it printed.

    It has a module cache of its own, and neither our package nor the optional ones can be imported.
    """
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCK_OURS + f"folder = {str(folder)!r}\n" + code],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
