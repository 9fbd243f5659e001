"""Environments of other libraries as `JaxEnv`s, one module for each library.

They are stepped without the libraries' automatic resets, so that each episode has its real last observation. A library
is imported when the first of its environments is made.

Each module has `creator(name)`, which returns a `NamedEnv`, and `names()`, the names of the library's environments.
Both raise `ConfigError` if the library is not installed.
"""
