"""`python -m rollax` is the same as the `rollax` command."""

from rollax.cli import main

if __name__ == "__main__":
    main()
