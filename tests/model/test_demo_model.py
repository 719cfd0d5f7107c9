"""The demo model is what it should be, and real text streams as it reads."""

import json
from pathlib import Path

import pytest

from decoders.detokenize import Detokenizer
from decoders.engine import Engine
from decoders.gates import FunctionWords
from decoders.loader import fetch, load
from decoders.models.base import ModelError
from decoders.params import ParameterError, SamplingParams
from decoders.request import Request

pytestmark = pytest.mark.model
PROMPTS = (Path(__file__).parent.parent / "data" / "prompts.jsonl").read_text().splitlines()


def chat(demo, text):
    return demo.tokenizer.encode_chat([{"role": "user", "content": text}])


def test_it_answers_a_question(demo):
    request = Request(
        chat(demo, "What is the capital of France?"), SamplingParams(temperature=0, max_tokens=20)
    )
    row = Engine(demo.model, demo.tokenizer).generate(request)

    assert "Paris" in demo.tokenizer.decode(row.output_ids)
    assert row.finish_reason == "stop"


def test_every_text_streams_piece_by_piece_as_it_decodes_whole(demo):
    for line in PROMPTS:
        token_ids = demo.tokenizer.encode(json.loads(line)["text"])
        detokenizer = Detokenizer(demo.tokenizer.decode)
        pieces = [detokenizer.push(token_id) for token_id in token_ids] + [detokenizer.flush()]

        assert "".join(pieces) == demo.tokenizer.decode(token_ids)
        assert not any("\ufffd" in piece for piece in pieces)


def test_token_bytes_put_together_are_the_text(demo):
    text = "Grüße, 안녕 🙂\n\tend"
    token_ids = demo.tokenizer.encode(text)

    assert b"".join(demo.tokenizer.token_bytes(i) for i in token_ids).decode() == text


def test_function_words_are_found_in_its_vocabulary(demo):
    words = FunctionWords(
        demo.tokenizer.token_bytes(i).decode(errors="replace") for i in range(demo.model.vocab_size)
    )
    the_of = demo.tokenizer.encode(" of the")

    assert words.simple_prefix([*the_of, *demo.tokenizer.encode(" engine")]) == len(the_of)


def test_a_chat_the_template_cannot_render_is_a_parameter_error(demo):
    with pytest.raises(ParameterError, match="messages"):
        demo.tokenizer.encode_chat([{"content": "who speaks?"}])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("/nowhere/at/all", "no model at"),
        ("./missing.gguf", "no such file"),
        ("just-a-word", "no model at"),
    ],
)
def test_a_missing_model_is_named(spec, reason):
    with pytest.raises(ModelError, match=reason):
        fetch(spec)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        fetch(str(tmp_path))


def test_a_broken_model_folder_is_refused_with_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    with pytest.raises(ModelError, match="cannot load") as caught:
        load(str(tmp_path))

    assert "\n" not in str(caught.value)


def test_a_broken_gguf_is_refused_and_leaves_nothing_behind(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)

    with pytest.raises(ModelError, match="cannot read"):
        load(str(broken), cache_dir=tmp_path / "cache")

    assert not any((tmp_path / "cache" / "models").iterdir())


def test_an_unknown_device_and_dtype_are_refused():
    with pytest.raises(ModelError, match="device"):
        load("demo", device="warp")
    with pytest.raises(ModelError, match="dtype"):
        load("demo", dtype="float3")
