"""Every error that a user can meet: a slug, a sentence, an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .findings import Text


class AllranksError(Exception):
    """Something the user can act on; raised anywhere, printed once by the door.

    `slug` names the error for the documentation, `message` says what happened, `advice` what to do (both
    `findings.say(...)` sentences, so that the door can translate them, or plain strings); `status` is the
    exit status of the command (2: could not do the job).
    """

    def __init__(self, slug: str, message: Text | str, advice: Text | str = "", *, status: int = 2) -> None:
        super().__init__(str(message))
        self.slug = slug
        self.message = message
        self.advice = advice
        self.status = status
