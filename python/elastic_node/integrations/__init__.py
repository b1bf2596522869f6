"""Frameworks in process: `lightning`, `transformers`, `accelerate`; `jax` by restart. A program imports the one that it uses."""
