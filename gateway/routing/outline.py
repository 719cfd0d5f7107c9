"""`Outline`: what of a policy is still open while more and more of a request is known.

It follows the order of `decide` to see which rules can still matter. It decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import msgspec

from gateway.routing.abstraction import Space
from gateway.routing.formulas import FALSE, TRUE, Formula
from gateway.routing.policy import Layer, Placed, Policy, Rule
from gateway.routing.variables import Trust
from gateway.types import Mode

_Rules = tuple[tuple[int, Formula], ...]
"""Places in the policy, and when the rules there hold."""


class State(msgspec.Struct, frozen=True):
    """The rules that can still matter."""

    bans: _Rules
    """With those of the layers, which come last."""
    choices: _Rules
    limits: _Rules
    denies: _Rules
    """Those of the layers alone."""
    expired: _Rules
    """When the rules that may still decide are over."""


class Outline:
    """The rules of one policy as formulas."""

    def __init__(self, policy: Policy, space: Space) -> None:
        self._policy = policy
        self._space = space
        self._formulas = space.formulas
        self._layer_of = {
            i: number for number, layer in enumerate(policy.layers) for i, _ in layer.rules()
        }
        self._restricted: dict[tuple[State, int, int], State] = {}
        self._supports: dict[State, int] = {}

    @property
    def variables(self) -> Iterator[int]:
        """What the rules read, in their order."""
        state = self.start(Trust())
        for _, formula in (*state.bans, *state.choices, *state.limits, *state.denies):
            support = self._formulas.support(formula)
            yield from (i for i in range(support.bit_length()) if support >> i & 1)

    def start(self, trust: Trust) -> State:
        """All that matters before anything but the trust in the signals is known."""
        policy = self._policy
        choices = policy.choices
        if self._distrust(trust):
            choices = tuple(each for each in choices if each[1].kind == "deny")
        return self._narrow(
            State(
                bans=(*self._plain(policy.bans), *self._layered(trust, lambda each: each.bans)),
                choices=tuple(self._plain(choices)),
                limits=(
                    *self._plain(policy.limits),
                    *self._layered(trust, lambda each: each.limits),
                ),
                denies=tuple(self._layered(Trust(), lambda each: each.denies)),
                expired=tuple(
                    (i, self._space.expired(rule.expires))
                    for i, rule in choices
                    if rule.kind == "decide" and rule.expires is not None
                ),
            )
        )

    def support(self, state: State) -> int:
        """The variables that are open, as bits."""
        found = self._supports.get(state)
        if found is None:
            found = 0
            for rules in msgspec.structs.astuple(state):
                for _, formula in rules:
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
                State(
                    *(
                        tuple((i, restrict(formula, variable, value)) for i, formula in rules)
                        for rules in msgspec.structs.astuple(state)
                    )
                )
            )
        return found

    def result(self, state: State, trust: Trust) -> tuple[str, dict[str, str]]:
        """What `decide` must come to where nothing is open: the rule, and who bans which mode."""
        rules = self._policy.rules
        bans = self._united(i for i, _ in state.bans if i not in self._layer_of)
        if state.choices:
            place = state.choices[0][0]
            rule, mode = rules[place].id, rules[place].decision.mode
            if (place, TRUE) in state.expired:
                mode = Mode.STANDARD
        else:
            block = self._distrust(trust)
            mode = getattr(self._policy, block or "default").mode
            rule = block or next(iter(bans.values()), "default")
        if mode.value in bans:
            mode = Mode.STANDARD
        denied = bool(state.choices) and rules[state.choices[0][0]].kind == "deny"
        for number in range(len(self._policy.layers)):
            own = self._united(i for i, _ in state.bans if self._layer_of.get(i) == number)
            if mode.value in own:
                rule, mode = own[mode.value], Mode.STANDARD
            bans = own | bans
            for i, _ in state.denies:
                if self._layer_of[i] == number and not denied:
                    rule, mode, denied = rules[i].id, Mode.STANDARD, True
        return rule, bans

    def _distrust(self, trust: Trust) -> str:
        """The block that stands in for the rules that decide; empty if none does."""
        if trust.classifier_error or self._policy.signals_read.intersection(trust.missing):
            return "on_classifier_error"
        return "on_truncated_input" if trust.truncated else ""

    def _plain(self, rules: Placed) -> Iterator[tuple[int, Formula]]:
        for i, rule in rules:
            yield i, self._space.formula(rule.when)

    def _layered(
        self, trust: Trust, chosen: Callable[[Layer], Placed]
    ) -> Iterator[tuple[int, Formula]]:
        """Rules of layers; where a layer cannot trust the signals that it reads, all of them hold."""
        for layer in self._policy.layers:
            applies = self._space.formula(layer.when)
            failed = trust.classifier_error or trust.truncated
            doubt = bool(layer.signals_read.intersection(trust.missing)) or (
                failed and bool(layer.signals_read)
            )
            for i, rule in chosen(layer):
                holds = TRUE if doubt else self._space.formula(rule.when)
                yield i, self._formulas.conjunction((applies, holds))

    def _united(self, places: Iterable[int]) -> dict[str, str]:
        """Mode → the first rule that bans it."""
        bans: dict[str, str] = {}
        for i in places:
            for mode in self._policy.rules[i].bans:
                bans.setdefault(mode.value, self._policy.rules[i].id)
        return bans

    def _narrow(self, state: State) -> State:
        """Without the rules that can change nothing any more."""
        bans = self._narrow_bans(state.bans)
        choices = self._narrow_choices(bans, state.choices)
        left = {i for i, _ in choices}
        return State(
            bans,
            choices,
            self._narrow_limits(state.limits),
            _until_true(state.denies),
            tuple((i, formula) for i, formula in state.expired if i in left and formula != FALSE),
        )

    def _narrow_bans(self, bans: _Rules) -> _Rules:
        banned: set[Mode] = set()
        kept = []
        for i, formula in bans:
            modes = self._policy.rules[i].bans
            if formula != FALSE and not banned.issuperset(modes):
                kept.append((i, formula))
                if formula == TRUE:
                    banned.update(modes)
        return tuple(kept)

    def _narrow_choices(self, bans: _Rules, choices: _Rules) -> _Rules:
        rules = self._policy.rules
        own = [(i, formula) for i, formula in bans if i not in self._layer_of]
        bannable = {mode for i, _ in own for mode in rules[i].bans}
        banned = {mode for i, formula in own if formula == TRUE for mode in rules[i].bans}
        kept: list[tuple[int, Formula]] = []
        for i, formula in choices:
            mode = rules[i].decision.mode
            if formula == FALSE or mode in banned:
                continue
            kept.append((i, formula))
            if formula == TRUE:
                if mode not in bannable:
                    break
                # It is passed over where its mode is banned, and so are all of that mode below.
                banned.add(mode)
        return tuple(kept)

    def _narrow_limits(self, limits: _Rules) -> _Rules:
        """Without those that are no stricter than one that holds."""
        rules = self._policy.rules
        held: list[tuple[int, _Caps]] = []
        for i, formula in limits:
            if formula == TRUE and not any(_covers(caps, _caps(rules[i])) for _, caps in held):
                held = [each for each in held if not _covers(_caps(rules[i]), each[1])]
                held.append((i, _caps(rules[i])))
        kept = {i for i, _ in held}
        return tuple(
            (i, formula)
            for i, formula in limits
            if i in kept
            or (
                formula not in (FALSE, TRUE)
                and not any(_covers(caps, _caps(rules[i])) for _, caps in held)
            )
        )


_Caps = tuple[float, float]


def _covers(caps: _Caps, others: _Caps) -> bool:
    return caps[0] <= others[0] and caps[1] <= others[1]


def _caps(rule: Rule) -> _Caps:
    limits = rule.decision.limits
    return (
        math.inf if limits.max_temperature is None else limits.max_temperature,
        math.inf if limits.max_tokens is None else limits.max_tokens,
    )


def _until_true(rules: _Rules) -> _Rules:
    """Up to the first that holds, without those that do not."""
    kept = []
    for i, formula in rules:
        if formula != FALSE:
            kept.append((i, formula))
        if formula == TRUE:
            break
    return tuple(kept)
