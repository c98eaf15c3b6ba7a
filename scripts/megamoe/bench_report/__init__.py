"""Benchmark figures with honest labels."""
