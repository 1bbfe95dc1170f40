"""`python -m allotment` is the command `allotment`."""

from allotment._cli import main

main()
