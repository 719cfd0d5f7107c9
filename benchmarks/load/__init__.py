"""What the gateway costs beside a backend that costs nothing: ``python -m benchmarks.load``."""
