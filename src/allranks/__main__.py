"""`python -m allranks`."""

from .cli import main

if __name__ == "__main__":
    main()
