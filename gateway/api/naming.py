"""Errors about a request in the words of the API that it was sent to.

Two endpoints translate their requests into chat completions, where some parameters have other names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gateway.errors import GatewayError, UnsupportedParameter


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Give the parameter of an error its name in ``names``, in the message too.

    A key is all of a parameter's path, or the end of one, from a dot on.
    """
    try:
        yield
    except GatewayError as error:
        for ours, theirs in names.items():
            if error.param is not None and _is(error.param, ours):
                param = error.param.removesuffix(ours) + theirs
                error.message = error.message.replace(repr(error.param), repr(param))
                error.param = param
                break
        raise


def refuse_renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise UnsupportedParameter for a field that has another name in this API."""
    for other, ours in names.items():
        if fields.get(other) is not None:
            raise UnsupportedParameter(f"{other!r} is called {ours!r} in this API.", param=other)


def _is(param: str, name: str) -> bool:
    return param == name or (name.startswith(".") and param.endswith(name))
