"""Committed specimens of generated code."""
