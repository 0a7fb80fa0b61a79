"""`python -m gangwatch`: the same as the `gangwatch` program."""

from gangwatch.cli import main

if __name__ == "__main__":
    main()
