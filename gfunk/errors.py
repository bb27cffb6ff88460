"""The one error a user's input can cause: the command line turns it into one line and exit status 2."""


class InputError(ValueError):
    """Something that was brought can't be used; the message says what, where, and what to do."""
