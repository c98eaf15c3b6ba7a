"""What Prometheus may know of the engine. One registry per engine, so that two in one process do not collide."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        prefix = "megamoe_engine_"
        self.requests = Counter(prefix + "requests", "HTTP requests answered", ["route", "code"], registry=registry)
        self.running = Gauge(prefix + "sequences_running", "Sequences that hold a KV slot", registry=registry)
        self.waiting = Gauge(prefix + "sequences_waiting", "Sequences that wait for a KV slot", registry=registry)
        self.cancelled = Counter(prefix + "sequences_cancelled", "Sequences whose client went away", registry=registry)
        self.prompt_tokens = Counter(prefix + "prompt_tokens", "Prompt tokens of started sequences", registry=registry)
        self.prefix_tokens = Counter(
            prefix + "prefix_tokens", "Prompt tokens copied instead of computed", registry=registry
        )
        self.generated_tokens = Counter(prefix + "generated_tokens", "Tokens generated", registry=registry)
        self.queue_seconds = Histogram(
            prefix + "queue_seconds", "Arrival to KV slot", buckets=_SECONDS, registry=registry
        )
        self.first_token_seconds = Histogram(
            prefix + "first_token_seconds", "Arrival to first token", buckets=_SECONDS, registry=registry
        )
        self.step_seconds = Histogram(prefix + "step_seconds", "One forward", buckets=_SECONDS, registry=registry)
        self.step_tokens = Histogram(
            prefix + "step_tokens", "Tokens in one forward", buckets=_TOKENS, registry=registry
        )
        self.moe_launches = Gauge(
            prefix + "moe_launches", "Forwards of the MegaMoE kernel, all layers", registry=registry
        )

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
