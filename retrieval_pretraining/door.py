"""How a command line ends: what went wrong is a line on the screen, and an exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from .errors import InputError, PushError


def exit_status(run: Callable[[], object], *, stopped: str = "Stopped.") -> int:
    """Runs it: 0; 2 for a mistake of the user, 1 for a push that failed, 130 for Ctrl-C, when it says `stopped`."""
    try:
        run()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PushError as error:
        report_push_error(error)
        return 1
    except KeyboardInterrupt:
        print(f"\n{stopped}", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def report_push_error(error: PushError):
    """With the command on a line of its own."""
    print(f"error: {error}.".replace("..", "."), file=sys.stderr)
    if error.command is not None:
        print(f"To push it again:\n  {error.command}", file=sys.stderr)
