"""Ask three questions with the official OpenAI client, and show how each answer was decoded.

Start a gateway first (``make serve``), then: ``python examples/quickstart.py``
"""

import sys

from openai import OpenAI

QUESTIONS = (
    "Write a Python function that parses a CSV file and returns the rows as dictionaries, and a test for it.",
    "What is the highest daily dose of ibuprofen for a child of 20 kg?",
    "My order arrived damaged and I want a refund, can you help me?",
)


def main(base_url: str = "http://127.0.0.1:8080/v1") -> None:
    """Print each answer with the headers that tell the decision."""
    client = OpenAI(base_url=base_url, api_key="not-needed-without-keys")
    model = client.models.list().data[0].id
    for question in QUESTIONS:
        response = client.chat.completions.with_raw_response.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=120,
            seed=7,
        )
        print(f"\n> {question}")
        for name, value in response.headers.items():
            if name.startswith("x-draftgate-"):
                print(f"  {name}: {value}")
        print(response.parse().choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:2])
