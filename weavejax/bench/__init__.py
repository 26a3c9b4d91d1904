"""Benchmarks: offline throughput of requests, and the decode step against its own GEMMs."""

from weavejax.bench.decode import DecodePoint, bench_decode
from weavejax.bench.requests import BenchRequest, load_requests, random_requests
from weavejax.bench.throughput import ThroughputResult, bench_throughput

__all__ = [
    "BenchRequest",
    "DecodePoint",
    "ThroughputResult",
    "bench_decode",
    "bench_throughput",
    "load_requests",
    "random_requests",
]
