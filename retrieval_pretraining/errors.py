"""The one kind of error that a door turns into a line on the screen instead of a traceback."""


class InputError(ValueError):
    """Something the user gave is wrong.

    The message is one sentence that says what is wrong, where (file, line, option) and what to do about it. The doors
    print it after `error: ` and exit with status 2; from Python it is an ordinary `ValueError`.
    """
