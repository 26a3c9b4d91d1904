"""Predicted beside measured: timing operators, validating plans, checking what they compute."""
