"""Anthropic's client: an answer, a stream, tools. Writes what it got as JSON."""

import json
import sys

from anthropic import Anthropic

TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
client = Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)


def ask(text, **fields):
    messages = [{"role": "user", "content": text}]
    return {"model": "scripted", "max_tokens": 100, "messages": messages, **fields}


with client.messages.stream(**ask("hello")) as stream:
    streamed = "".join(stream.text_stream)
    usage = stream.get_final_message().usage
with client.messages.stream(**ask("weather?", tools=[TOOL])) as stream:
    called = stream.get_final_message()
assert called.stop_reason == "tool_use"
assert (
    client.messages.count_tokens(
        model="scripted", messages=[{"role": "user", "content": "hello"}]
    ).input_tokens
    == 1
)
found = {
    "text": client.messages.create(**ask("hello")).content[0].text,
    "streamed": streamed,
    "usage": usage.input_tokens + usage.output_tokens,
    "calls": [[block.name, block.input] for block in called.content if block.type == "tool_use"],
}
sys.stdout.write(json.dumps(found))
