"""`python -m allotment` is the command `allotment`."""

from allotment.cli import main

main()
