"""The one exception that the command line turns into a sentence and exit code 2."""


class UserError(Exception):
    """Something the user can mend: names the thing, the value and the limit, in one sentence."""


class Interrupted(Exception):
    """A signal asked to stop; everything needed to go on has been saved."""

    def __init__(self, signum: int, hint: str):
        super().__init__(hint)
        self.signum = signum


class MissingExtra(UserError):
    """An optional package is not installed; the sentence names the extra that brings it."""

    def __init__(self, package: str, extra: str):
        super().__init__(f"{package} is not installed: pip install 'softbeam[{extra}]'")
