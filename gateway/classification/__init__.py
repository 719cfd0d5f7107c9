"""Classifiers: producers of signals about a request."""
