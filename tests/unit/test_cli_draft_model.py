"""``draftgate generate`` with a draft model."""

import json

import pytest
from click.testing import CliRunner

from gateway.cli import main


@pytest.fixture
def generate(tiny_model, tmp_path, monkeypatch):
    config = tmp_path / "draftgate.yaml"
    config.write_text(
        "backends:\n  local:\n    type: local\n"
        "    options: {device: cpu, max_length: 96, num_slots: 1, cost_model: 'off'}\n"
    )
    monkeypatch.setenv("DRAFTGATE_CONFIG", str(config))
    monkeypatch.setenv("DRAFTGATE_CACHE", str(tmp_path))
    common = [
        "generate",
        "Say it.",
        "--model",
        str(tiny_model),
        "--max-tokens",
        "12",
        "--seed",
        "3",
    ]

    def run(*options):
        return CliRunner().invoke(main, [*common, *options])

    return run


def test_it_drafts_with_the_models_own_first_layers(generate):
    result = generate("--compare", "--json", "--draft-source", "model", "--draft-layers", "1")
    document = json.loads(result.stdout.splitlines()[-1])

    assert result.exit_code == 0
    assert document["tokens_equal"]
    standard, speculative, _ = document["runs"]
    assert standard["draft_tokens_proposed"] == 0
    assert speculative["draft_tokens_proposed"] > 0


def test_a_draft_model_that_is_the_model_itself_is_always_right(generate, tiny_model):
    result = generate(
        "--mode",
        "speculative",
        "--json",
        "--draft-source",
        "model",
        "--draft-model",
        str(tiny_model),
        "--num-speculative-tokens",
        "3",
    )
    document = json.loads(result.stdout.splitlines()[-1])

    assert document["draft_tokens_accepted"] == document["draft_tokens_proposed"] > 0
    assert document["mean_acceptance_length"] > 2


def test_without_a_draft_model_it_says_how_to_give_one(generate):
    result = generate("--mode", "speculative", "--draft-source", "model")

    assert result.exit_code == 2
    assert "the draft source 'model' needs a draft model" in result.output
    assert "draft_layers" in result.output
