"""The decision log: two durable records per request."""
