"""What ends a command with one plain line on stderr."""

import click


class BadInput(click.ClickException):
    """What the user can mend; exit status 2."""

    exit_code = 2


class Interrupted(click.ClickException):
    """Ctrl-C, with what was written before it; exit status 130."""

    exit_code = 130
