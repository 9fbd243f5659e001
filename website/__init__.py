"""The documentation site: `python -m website` builds it from `docs/`, the README, the examples and the docstrings.

`assembly.py` writes a folder of Markdown pages, which Sphinx (`conf.py`) turns into HTML. The pages of `docs` stay
plain Markdown for readers on a code host; links to other files of the repository become links to pages of the site.
"""
