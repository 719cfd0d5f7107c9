"""Finds extensions by entry point. Knows nothing of what it loads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, get_type_hints

import msgspec

from gateway.errors import ConfigError, Problem

KINDS = ("classifiers", "backends", "draft_sources", "verifiers", "maskers")


def names(kind: str) -> tuple[str, ...]:
    """The registered names of one kind, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=f"gateway.{kind}")}))


def load(kind: str, name: str) -> Any:
    """The object registered as ``name``; imported now, so that torch is paid for only when used.

    Raises ConfigError naming the known ones when there is no such name, or two packages claim it.
    """
    points = {point.value: point for point in entry_points(group=f"gateway.{kind}", name=name)}
    if not points:
        known = ", ".join(names(kind)) or "none"
        raise _error(
            kind,
            f"unknown name {name!r}; known: {known}",
            "if it is new, run pip install -e . again",
        )
    if len(points) > 1:
        raise _error(
            kind, f"{name!r} is claimed twice: {', '.join(points)}", "uninstall one of them"
        )
    return next(iter(points.values())).load()


def build(kind: str, name: str, options: Mapping[str, Any], /, **given: Any) -> Any:
    """Construct ``name`` with its options, and with what the gateway has ``given``, as keywords.

    Raises ConfigError for an option that it does not know, and for a value that it refuses.
    """
    factory = load(kind, name)
    parameters = inspect.signature(factory).parameters
    if unknown := sorted(set(options) - (set(parameters) - set(given))):
        known = ", ".join(sorted(set(parameters) - set(given))) or "none"
        raise _error(kind, f"{name!r} has no option {', '.join(unknown)}", f"options: {known}")
    if missing := sorted(set(given) - set(parameters)):
        hint = "its constructor must take what the gateway gives it"
        raise _error(kind, f"{name!r} takes no {', '.join(missing)}", hint)
    checked = _checked(kind, name, factory, options)
    try:
        return factory(**given, **checked)
    except ValueError as error:
        raise _error(kind, f"{name!r}: {error}", "correct its options") from error


def _checked(kind: str, name: str, factory: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, converted to the types that the constructor's annotations ask for."""
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    checked = {}
    for option, value in options.items():
        try:
            checked[option] = msgspec.convert(value, hints.get(option, Any))
        except msgspec.ValidationError as error:
            raise _error(
                kind, f"option {option!r} of {name!r}: {error}", "correct its type"
            ) from None
    return checked


def _error(kind: str, message: str, hint: str) -> ConfigError:
    return ConfigError([Problem(message, path=f"gateway.{kind}", hint=hint)])
