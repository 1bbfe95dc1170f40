"""`python -m allotment` is the command `allotment`."""

from __future__ import annotations

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells count it."""


def main() -> None:
    """Run the command that the arguments of this process name. Ctrl-C while it is loaded shows no traceback."""
    try:
        from allotment._cli import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
