"""Processes that know the loopback Hub as theirs: HF_ENDPOINT is read when `huggingface_hub` is imported."""

import os
from pathlib import Path

from fresh_process import BLOCK_OURS, ForkServer

ROOT = Path(__file__).parents[1]


def hub_environment(url: str, home: Path, token: str | None) -> dict[str, str]:
    """All that a process needs to take the loopback Hub for the real one, and nothing of this process's own."""
    return {
        **{name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ},
        **{"HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": url, "NO_PROXY": "127.0.0.1,localhost"},
        **{"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        **{"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""},
        **({"HF_TOKEN": token} if token else {}),
    }


class Client(ForkServer):
    def __init__(self, url: str, home: Path, imports: str, *, token: str | None, ours: bool = True):
        environment = hub_environment(url, home, token) | ({"PYTHONPATH": str(ROOT)} if ours else {})
        super().__init__(home, ("" if ours else BLOCK_OURS) + f"import warnings\n{imports}", environment)
