"""LangChain's chat model: an answer, a stream, tools. Writes what it got as JSON."""

import json
import sys

from langchain_openai import ChatOpenAI


def weather(city: str) -> str:
    """The weather in a city."""
    return city


model = ChatOpenAI(
    base_url=f"{sys.argv[1]}/v1", api_key="none", model="scripted", max_retries=0, stream_usage=True
)
called = model.bind_tools([weather]).invoke("weather?")
pieces = list(model.stream("hello"))
found = {
    "text": model.invoke("hello").content,
    "streamed": "".join(piece.content for piece in pieces),
    "usage": [piece.usage_metadata for piece in pieces if piece.usage_metadata][-1]["total_tokens"],
    "calls": [[call["name"], call["args"]] for call in called.tool_calls],
}
sys.stdout.write(json.dumps(found))
