"""The formats of others, each in a module that is imported when it is read."""
