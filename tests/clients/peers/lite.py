"""LiteLLM as a client: an answer, a stream, tools. Writes what it got as JSON."""

import json
import sys

import litellm

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def ask(text, **fields):
    return litellm.completion(
        model="openai/scripted",
        api_base=f"{sys.argv[1]}/v1",
        api_key="none",
        messages=[{"role": "user", "content": text}],
        num_retries=0,
        **fields,
    )


chunks = list(ask("hello", stream=True, stream_options={"include_usage": True}))
calls = ask("weather?", tools=[TOOL]).choices[0].message.tool_calls
found = {
    "text": ask("hello").choices[0].message.content,
    "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
    "usage": [c.usage.total_tokens for c in chunks if getattr(c, "usage", None)][-1],
    "calls": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
}
sys.stdout.write(json.dumps(found))
