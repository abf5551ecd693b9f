"""Processes that know the loopback Hub as theirs: HF_ENDPOINT is read when `huggingface_hub` is imported.

A `Client` imports what it is told once and then forks for each piece of code, so that each runs in a process of its
own that takes no time to start.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fresh_process import BLOCK_OURS

ROOT = Path(__file__).parents[1]

_LOOP = """
import json, os, sys, time, traceback
for line in sys.stdin:
    job = json.loads(line)
    if job is None:
        break
    child = os.fork()
    if not child:
        status = 1
        try:
            for number, path in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
            sys.stdin = open(0, closefd=False)
            os.environ.update(job["environment"])
            os.chdir(job["folder"])
            sys.argv = job["argv"]
            if job["offline"]:
                huggingface_hub.constants.HF_HUB_OFFLINE = True
            sleep = time.sleep
            time.sleep = lambda seconds: sleep(min(seconds, job["longest_sleep"]))
            exec(compile(job["code"], "<client>", "exec"), {"__name__": "__main__"})
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    _, code = os.waitpid(child, 0)
    answer.write(f"{os.waitstatus_to_exitcode(code)}\\n")
    answer.flush()
"""


@dataclass
class Outcome:
    status: int
    out: str
    err: str


def hub_environment(url: str, home: Path, token: str | None) -> dict[str, str]:
    """All that a process needs to take the loopback Hub for the real one, and nothing of this process's own."""
    return {
        **{name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ},
        **{"HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": url, "NO_PROXY": "127.0.0.1,localhost"},
        **{"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        **{"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""},
        **({"HF_TOKEN": token} if token else {}),
    }


class Client:
    def __init__(self, url: str, home: Path, imports: str, *, token: str | None, ours: bool = True):
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        environment = hub_environment(url, home, token)
        environment |= {"PYTHONPATH": str(ROOT)} if ours else {}
        start = ("" if ours else BLOCK_OURS) + f"import huggingface_hub, warnings\n{imports}\n"
        start += "import os\nanswer = os.fdopen(os.dup(1), 'w')\n" + _LOOP
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=home,
            env=environment,
        )
        self.number = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        # Not by closing the pipe alone: processes that were forked meanwhile, as those of `datasets`, hold it open.
        self.process.stdin.write("null\n")
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def run(
        self,
        code: str,
        *,
        argv: list[str] = (),
        folder: Path | None = None,
        offline: bool = False,
        longest_sleep: float = 0.02,
        **environment: str,
    ) -> Outcome:
        """Runs `code` in a process of its own; waits between retries are cut short."""
        self.number += 1
        out, err = (self.home / f"{self.number}.{name}" for name in ("out", "err"))
        job = {"code": code, "argv": list(map(str, argv)), "folder": str(folder or self.home), "offline": offline}
        job |= {"out": str(out), "err": str(err), "environment": environment, "longest_sleep": longest_sleep}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        return Outcome(status, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))

    def check(self, code: str, **options) -> str:
        """The same for code that has to work; what it printed."""
        outcome = self.run(code, **options)
        assert outcome.status == 0, outcome.err[-4000:]
        return outcome.out
