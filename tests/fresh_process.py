"""Runs code as somebody else would: another process, another folder, and none of this project's modules.

A `ForkServer` imports what it is told once and then forks for each piece of code, so that each runs in a process of
its own that takes no time to start.
"""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
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

_LOOP = """
import json, os, signal, sys, time, traceback
for line in sys.stdin:
    job = json.loads(line)
    if job is None:
        break
    child = os.fork()
    if not child:
        status = 1
        os.setsid()
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
            status = stop.code or 0
            if isinstance(status, str):
                print(status, file=sys.stderr)
                status = 1
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    deadline, ended = time.monotonic() + job["timeout"], 0
    while not ended:
        ended, code = os.waitpid(child, os.WNOHANG)
        if not ended and time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            ended, code = os.waitpid(child, 0)
        time.sleep(0 if ended else 0.005)
    try:
        os.killpg(child, signal.SIGKILL)  # what it has left running
    except ProcessLookupError:
        pass
    answer.write(f"{os.waitstatus_to_exitcode(code)}\\n")
    answer.flush()
"""


@dataclass
class Outcome:
    status: int
    out: str
    err: str


class ForkServer:
    """`imports` is code that is run once, `environment` all that its processes see; what they print is kept in `home`,
    where they run if they are not told another folder."""

    def __init__(self, home: Path, imports: str, environment: dict[str, str]):
        self.home, self.number = home, 0
        home.mkdir(parents=True, exist_ok=True)
        start = f"import huggingface_hub\n{imports}\nimport os\nanswer = os.fdopen(os.dup(1), 'w')\n{_LOOP}"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=home,
            env=environment,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        # Not by closing the pipe alone: processes that were forked meanwhile, as those of `datasets`, hold it open.
        if self.process.poll() is None:
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
        timeout: float = 300,
        **environment: str,
    ) -> Outcome:
        """Runs `code` in a process of its own, killed after `timeout` seconds; waits between retries are cut short."""
        self.number += 1
        out, err = (self.home / f"{self.number}.{name}" for name in ("out", "err"))
        job = {"code": code, "argv": list(map(str, argv)), "folder": str(folder or self.home), "offline": offline}
        job |= {"out": str(out), "err": str(err), "environment": environment, "longest_sleep": longest_sleep}
        job["timeout"] = timeout
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the process that forks has ended with {self.process.wait(timeout=60)}"
        status = int(answer)
        return Outcome(status, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))

    def check(self, code: str, **options) -> str:
        """The same for code that has to work; what it printed."""
        outcome = self.run(code, **options)
        assert outcome.status == 0, outcome.err[-4000:]
        return outcome.out


# The libraries that take seconds to import; sentence-transformers is not there with the oldest ones.
_IMPORTS = """
import contextlib, datasets, torch, transformers.dynamic_module_utils, transformers.utils.hub
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer, BertModel, Trainer
with contextlib.suppress(ImportError):
    import sentence_transformers
"""
# Where the code that comes with a model is copied to.
_MODULES = """
import transformers.dynamic_module_utils, transformers.utils.hub
transformers.dynamic_module_utils.HF_MODULES_CACHE = transformers.utils.hub.HF_MODULES_CACHE = {modules!r}
"""


_RUN_SCRIPT = """
import __main__, os, sys
sys.path[0] = os.path.dirname(sys.argv[0])
__main__.__file__ = sys.argv[0]  # which processes that the script spawns import
with open(sys.argv[0], encoding="utf-8") as file:
    exec(compile(file.read(), sys.argv[0], "exec"), __main__.__dict__)
"""
# As torchrun starts a script: both processes know of each other, and one that fails takes the other along.
_RUN_SCRIPT_TWICE = f"""
import os, signal, socket, sys
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
children, failed = [], 0
for rank in "01":
    children.append(os.fork())
    if not children[-1]:
        os.environ.update(RANK=rank, LOCAL_RANK=rank)
        exec({_RUN_SCRIPT!r})
        sys.exit()
while children:
    child, status = os.wait()
    children.remove(child)
    if status and not failed:
        failed = 1
        for other in children:
            os.kill(other, signal.SIGKILL)
sys.exit(failed)
"""


@functools.cache
def _server(*, ours: bool) -> ForkServer:
    home = Path(tempfile.mkdtemp())
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1"}
    if ours:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    imports = _IMPORTS if ours else BLOCK_OURS + _IMPORTS
    server = ForkServer(home, imports, {**environment, "OMP_NUM_THREADS": "1"})
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    atexit.register(server.close)
    return server


def in_fresh_process(code: str, folder: Path, tmp_path: Path) -> str:
    """Runs `code`, which finds the path of `folder` under that name, in `tmp_path`; returns what it printed.

    It has a module cache of its own, and neither our package nor the optional ones can be imported.
    """
    start = _MODULES.format(modules=str(tmp_path / "modules")) + f"folder = {str(folder)!r}\n"
    return _server(ours=False).check(start + code, folder=tmp_path, longest_sleep=60)


def run_script(words: Sequence[str | Path], folder: Path, *, processes: int = 1) -> Outcome:
    """Runs a script of ours with its flags in a process of its own, or in two as torchrun does, with one thread."""
    code = {1: _RUN_SCRIPT, 2: _RUN_SCRIPT_TWICE}[processes]
    return _server(ours=True).run(code, argv=words, folder=folder, longest_sleep=60)


def run_ours(code: str, folder: Path, *arguments: str | Path) -> str:
    """What code printed that may import our package, in a process that has not done so yet."""
    return _server(ours=True).check(code, argv=["-c", *arguments], folder=folder, longest_sleep=60)
