"""Extensions are found by name, and a wrong name or option says what would be right."""

import pytest

from gateway import extensions
from gateway.errors import ConfigError


def test_the_built_in_extensions_are_registered():
    assert "local" in extensions.names("backends")
    assert "suffix" in extensions.names("draft_sources")
    assert "coupled" in extensions.names("verifiers")
    assert set(extensions.names("classifiers")) >= {"domain", "context", "language"}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown name 'locl'; known: local, openai, scripted"):
        extensions.load("backends", "locl")


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"has no option modle .*chunk_seconds"):
        extensions.build("backends", "scripted", {"modle": "x"})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("local", {"num_slots": "8"}, "option 'num_slots' of 'local': Expected `int`, got `str`"),
        ("local", {"threads": 1.5}, "option 'threads'"),
        ("scripted", {"replies": 3}, "option 'replies'"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(name, options, message):
    with pytest.raises(ConfigError, match=message):
        extensions.build("backends", name, options)


def test_an_option_is_given_to_the_constructor():
    backend = extensions.build("backends", "scripted", {"models": ["m"], "max_length": 9})

    assert [(model.id, model.max_length) for model in backend.models] == [("m", 9)]


def test_what_the_gateway_gives_is_no_option_and_cannot_be_overridden():
    backend = extensions.build("backends", "scripted", {"models": ["m"]}, name="mine")
    assert backend.models[0].id == "m"

    with pytest.raises(
        ConfigError, match=r"'scripted' has no option name .*options: calls, chunk_sec"
    ):
        extensions.build("backends", "scripted", {"name": "other"}, name="mine")


def test_a_constructor_that_does_not_take_what_it_is_given_is_named():
    with pytest.raises(ConfigError, match=r"'domain' takes no colour .*its constructor must"):
        extensions.build("classifiers", "domain", {}, colour="red")
