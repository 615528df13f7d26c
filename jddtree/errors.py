"""The one error type that a command line turns into a single line and exit status 2."""


class InputError(ValueError):
    """Bad input: a file, flag, prompt or checkpoint that cannot be used. The message is one line that says what to do."""
