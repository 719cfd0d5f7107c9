"""`ActivePolicy`: the one reference to the policy in force. Whoever reads it gets a whole one."""

from __future__ import annotations

from datetime import date

from gateway.routing.policy import Policy


class ActivePolicy:
    """The policy in force, and what keeps a newer one from it.

    A request reads ``current`` once and keeps what it got: a policy is immutable, and replacing it
    is one assignment.
    """

    def __init__(self, policy: Policy) -> None:
        self.current = policy
        self.warning: str | None = None
        """Why what the policy's files hold now is not, or not wholly, in force."""

    def warnings(self, today: date) -> tuple[str, ...]:
        """All that an operator should mend."""
        first = () if self.warning is None else (self.warning,)
        return (*first, *self.current.warnings(today))
