"""The one error type that a command line turns into a single line and exit status 2."""


class InputError(ValueError):
    """A file, flag, prompt or checkpoint that cannot be used. The message is one line for the user."""
