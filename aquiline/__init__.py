"""Aquiline serves Llama models with EAGLE speculative decoding."""
