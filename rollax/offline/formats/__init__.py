"""Formats of other libraries, each in a module that is imported when it is needed."""
