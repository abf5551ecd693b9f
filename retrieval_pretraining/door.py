"""How a command line ends: what went wrong is a line on the screen, and an exit status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import torch

from .errors import InputError, PushError


def exit_status(
    run: Callable[[], object], *, stopped: str = "Stopped.", failures: tuple[type[Exception], ...] = ()
) -> int:
    """Runs it: 0; 2 for a mistake of the user, 1 for a push that failed or one of the `failures`, 130 for Ctrl-C, when
    it says `stopped`. Of several processes the first one tells of a mistake, which all of them make."""
    try:
        run()
    except InputError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 2
    except PushError as error:
        report_push_error(error)
        return 1
    except failures as error:  # happens in one process, whichever that is
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{stopped}", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    return 0


def report_push_error(error: PushError):
    """With the command on a line of its own."""
    print(f"error: {error}.".replace("..", "."), file=sys.stderr)
    if error.command is not None:
        print(f"To push it again:\n  {error.command}", file=sys.stderr)
