"""Prompts to teach a draft model with: varied, over ten domains, none of which a benchmark asks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

_TOPICS = {
    "code": (
        (
            "Write a Python function that {}.",
            "Write a short JavaScript example that {}, with comments.",
            "Explain step by step how a program {}, then show the code.",
            "Review this idea and write unit tests for it: a module that {}.",
        ),
        (
            "merges two sorted lists",
            "counts the words in a text file",
            "checks whether brackets are balanced",
            "converts Roman numerals to integers",
            "finds the shortest path in a grid",
            "removes duplicates from a list and keeps the order",
            "parses a date such as 2021-05-17",
            "caches the results of a slow call",
            "groups records by a key",
            "validates an email address",
            "retries a request with growing pauses",
            "reads settings from an INI file",
        ),
    ),
    "factual_qa": (
        (
            "What is {}?",
            "Explain {} to a twelve-year-old.",
            "List five facts about {}.",
            "Why is {} important?",
        ),
        (
            "photosynthesis",
            "the water cycle",
            "plate tectonics",
            "the French Revolution",
            "the speed of light",
            "a black hole",
            "the Silk Road",
            "DNA",
            "the greenhouse effect",
            "the printing press",
            "the Roman Senate",
            "a solar eclipse",
        ),
    ),
    "creative_writing": (
        (
            "Write a short story about {}.",
            "Write a poem about {}.",
            "Write the first page of a novel about {}.",
            "Write a funny dialogue about {}.",
        ),
        (
            "a clockmaker who has lost a day",
            "two neighbours and one apple tree",
            "a train that stops at no station",
            "a robot that learns to bake bread",
            "a mountain village in winter",
            "a girl who collects shadows",
            "an old map found in a library",
            "a musician without an audience",
            "the last bookshop in town",
            "a dog that can count",
        ),
    ),
    "customer_support": (
        (
            "My {} does not work any more. What can I do?",
            "I want to return my {}. Please help me.",
            "Write a polite answer to a customer whose {} came too late.",
            "How do I change the delivery address for my {}?",
        ),
        (
            "coffee machine",
            "winter jacket",
            "monthly subscription",
            "wireless headset",
            "train ticket",
            "kitchen table",
            "online course",
            "vacuum cleaner",
            "gift card",
            "phone contract",
        ),
    ),
    "summary": (
        (
            "Summarize in two sentences: {}",
            "Write a headline and three bullet points for this text: {}",
            "Rewrite this text for children: {}",
            "Translate the main idea of this text into one simple sentence: {}",
        ),
        (
            "The town council met on Monday and agreed to plant two hundred trees along the river. "
            "Volunteers will begin in October, and schools may adopt a tree each.",
            "Bees find their way by the sun and by landmarks. A new study followed 80 bees with tiny "
            "radio tags and found that they remember places for more than a week.",
            "The factory has made glass since 1921. Last year it replaced its gas furnace by an "
            "electric one, which halved its costs, but it had to stop for four months.",
            "Rain was scarce this spring. Farmers in the valley share the water of one lake, and they "
            "have agreed on fixed days so that every field is watered once a week.",
            "The museum shows letters from soldiers and their families. Visitors can listen to them in "
            "six languages. The exhibition is open until the end of March and costs five euros.",
            "Our team fixed 43 errors in version 2.4, most of them in the import of spreadsheets. The "
            "search is twice as fast. Users have to sign in again after the update.",
        ),
    ),
    "extraction": (
        (
            "List every name and every date in this text, one a line: {}",
            "Make a table of the numbers in this text and what they mean: {}",
            'Answer as JSON with the keys "who", "what" and "when": {}',
        ),
        (
            "Anna Petrov joined the company on 4 May 2019 and became head of sales on 1 July 2022.",
            "The concert of the Blue Lanterns is on 12 August at 8 p.m.; tickets cost 24 dollars.",
            "On 3 March, Dr. Okafor sent 15 samples to the laboratory, of which 2 were damaged.",
            "Flight 417 to Oslo leaves at 06:45 from gate B12 and lands at 09:10.",
            "Mr. Tanaka ordered 40 chairs and 8 tables for the school on 19 September.",
            "The library lent 5,210 books in June, 340 more than in May, says Lucia Romano.",
        ),
    ),
    "medical": (
        (
            "What are the common causes of {}?",
            "How is {} usually treated?",
            "What should I know about {}?",
        ),
        (
            "a headache",
            "high blood pressure",
            "a sprained ankle",
            "hay fever",
            "iron deficiency",
            "insomnia",
            "a sore throat",
            "back pain",
        ),
    ),
    "legal": (
        ("What does {} mean?", "Give a short overview of {}.", "Write a simple example of {}."),
        (
            "a lease agreement",
            "intellectual property",
            "a power of attorney",
            "breach of contract",
            "a non-disclosure agreement",
            "small claims court",
            "consumer protection",
        ),
    ),
    "finance": (
        (
            "Explain {} in simple words.",
            "What are the risks of {}?",
            "Give me three tips about {}.",
        ),
        (
            "compound interest",
            "a household budget",
            "index funds",
            "a mortgage",
            "inflation",
            "an emergency fund",
            "credit scores",
            "exchange rates",
        ),
    ),
    "everyday": (
        (
            "How do I {}?",
            "Write an email to a colleague about how to {}.",
            "Make a checklist for somebody who wants to {}.",
        ),
        (
            "plan a birthday party",
            "learn a new language",
            "cook rice without burning it",
            "prepare for a job interview",
            "clean a bicycle",
            "start a small garden",
            "write a good report",
            "organise a bookshelf",
            "sleep better",
            "move to another city",
        ),
    ),
}


def prompts(seed: int = 0) -> Iterator[str]:
    """All prompts in an order that mixes the domains, again and again."""
    texts = [
        template.format(topic)
        for templates, topics in _TOPICS.values()
        for template, topic in itertools.product(templates, topics)
    ]
    while True:
        random.Random(seed).shuffle(texts)
        yield from texts
        seed += 1
