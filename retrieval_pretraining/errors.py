"""The errors that a door turns into a line on the screen instead of a traceback."""


class InputError(ValueError):
    """Something the user gave is wrong.

    The message is one sentence that says what is wrong, where (file, line, option) and what to do about it. The doors
    print it after `error: ` and exit with status 2; from Python it is an ordinary `ValueError`.
    """


class PushError(RuntimeError):
    """The Hub did not take a push. The message is one sentence; `command` is what makes up for it."""

    def __init__(self, message: str, command: str | None = None):
        super().__init__(message)
        self.command = command
