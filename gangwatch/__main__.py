"""`python -m gangwatch` and the `gangwatch` program."""

import sys

from gangwatch.own_modules import ForeignModuleError, guard


def main() -> None:
    """Run the command line and exit with its code. First make sure that only gangwatch's own modules are imported."""
    try:
        guard()
        from gangwatch.cli import main as run
    except ForeignModuleError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:  # the imports take long enough to be interrupted
        sys.stderr.write("interrupted\n")
        sys.exit(128 + 2)  # as a shell counts SIGINT
    run()


if __name__ == "__main__":
    main()
