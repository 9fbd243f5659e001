"""Environments with a thread of control of their own."""
