"""OpenAI's client on the Responses API: an answer, a stream, tools. Writes what it got as JSON."""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)

first = client.responses.create(model="scripted", input="hello")
with client.responses.stream(
    model="scripted", input="hello", previous_response_id=first.id
) as stream:
    streamed = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert stream.get_final_response().output_text == streamed
called = client.responses.create(model="scripted", input="weather?", tools=[TOOL])
found = {
    "text": first.output_text,
    "streamed": streamed,
    "usage": first.usage.total_tokens,
    "calls": [
        [item.name, json.loads(item.arguments)]
        for item in called.output
        if item.type == "function_call"
    ],
}
sys.stdout.write(json.dumps(found))
