"""`Outline`: what of a policy is still open while more and more of a request is known.

It follows the order of `decide` to see which rules can still matter. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.routing.abstraction import ERROR, TRUSTED, Space
from gateway.routing.formulas import FALSE, TRUE, Formula
from gateway.routing.policy import Policy

_Rules = tuple[tuple[int, Formula], ...]
"""Places in the file, and when the rules there hold."""


class State(msgspec.Struct, frozen=True):
    """The rules that can still matter."""

    bans: _Rules
    choices: _Rules


class Outline:
    """The rules of one policy as formulas."""

    def __init__(self, policy: Policy, space: Space) -> None:
        self._policy = policy
        self._formulas = space.formulas
        self._bans = tuple((i, space.formula(rule.when)) for i, rule in policy.bans)
        self._choices = tuple((i, space.formula(rule.when)) for i, rule in policy.choices)
        self._restricted: dict[tuple[State, int, int], State] = {}
        self._supports: dict[State, int] = {}

    @property
    def variables(self) -> Iterator[int]:
        """What the rules read, in their order."""
        for _, formula in (*self._bans, *self._choices):
            support = self._formulas.support(formula)
            yield from (i for i in range(support.bit_length()) if support >> i & 1)

    def start(self, trust: int) -> State:
        """All that matters before anything but the trust in the signals is known."""
        choices = self._choices
        if trust != TRUSTED:
            choices = tuple(each for each in choices if self._policy.rules[each[0]].kind == "deny")
        return self._narrow(self._bans, choices)

    def support(self, state: State) -> int:
        """The variables that are open, as bits."""
        found = self._supports.get(state)
        if found is None:
            found = 0
            for _, formula in (*state.bans, *state.choices):
                found |= self._formulas.support(formula)
            self._supports[state] = found
        return found

    def restrict(self, state: State, variable: int, value: int) -> State:
        """What still matters where a variable has that value."""
        if not self.support(state) >> variable & 1:
            return state
        key = (state, variable, value)
        found = self._restricted.get(key)
        if found is None:
            restrict = self._formulas.restrict
            found = self._restricted[key] = self._narrow(
                tuple((i, restrict(formula, variable, value)) for i, formula in state.bans),
                tuple((i, restrict(formula, variable, value)) for i, formula in state.choices),
            )
        return found

    def result(self, state: State, trust: int) -> tuple[str, dict[str, str]]:
        """What `decide` must come to where nothing is open: the rule, and who bans which mode."""
        rules = self._policy.rules
        bans: dict[str, str] = {}
        for i, _ in state.bans:
            for mode in rules[i].bans:
                bans.setdefault(mode.value, rules[i].id)
        if state.choices:
            return rules[state.choices[0][0]].id, bans
        if trust != TRUSTED:
            return "on_classifier_error" if trust == ERROR else "on_truncated_input", bans
        return next(iter(bans.values()), "default"), bans

    def _narrow(self, bans: _Rules, choices: _Rules) -> State:
        """Without the rules that can change nothing any more."""
        rules = self._policy.rules
        banned: set[str] = set()
        bannable: set[str] = set()
        kept_bans = []
        for i, formula in bans:
            if formula == FALSE or banned.issuperset(rules[i].bans):
                continue
            kept_bans.append((i, formula))
            bannable.update(rules[i].bans)
            if formula == TRUE:
                banned.update(rules[i].bans)
        kept_choices: list[tuple[int, Formula]] = []
        taken: set[str] = set()
        for i, formula in choices:
            mode = rules[i].decision.mode
            if formula == FALSE or mode in banned or mode in taken:
                continue
            kept_choices.append((i, formula))
            if formula == TRUE:
                if mode not in bannable:
                    break
                # It is passed over where its mode is banned, and so are all of that mode below.
                taken.add(mode)
        return State(tuple(kept_bans), tuple(kept_choices))
