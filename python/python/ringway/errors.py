"""What calls can raise. Each message says what was expected, what was found, and the remedy."""


class Error(RuntimeError):
    """Any error of Ringway's."""


class ArgumentError(Error, ValueError):
    """Arguments that cannot be right. The communicator is as it was."""


class BootstrapError(Error):
    """Joining the job failed: a rank is missing or there twice, a place cannot be reached."""


class SettingsError(Error):
    """A setting is wrong: in ``ringway.yaml``, the environment or the call."""


class FailedError(Error):
    """A rank failed, or ranks disagree: every rank gets the same. The communicator cannot be used any more."""

    rank: int = -1
    """The rank that failed, by its number in the world."""
    host: str = ""
    """Its host."""
    pid: int = 0
    """Its process."""
    cause: str = ""
    """aborted, crashed, left, link_lost, misfit, mismatch, silent, timeout or unable"""
