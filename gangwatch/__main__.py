"""`python -m gangwatch` and the `gangwatch` program."""

import sys

from gangwatch.own_modules import ForeignModuleError, guard


def main() -> None:
    """Run the command line and exit with its code. First make sure that only gangwatch's own modules are imported."""
    try:
        guard()
    except ForeignModuleError as error:
        sys.exit(f"Error: {error}")
    from gangwatch.cli import main as run

    run()


if __name__ == "__main__":
    main()
