"""Anthropic's Messages API: another form of requests and answers, on the way of chat completions."""
