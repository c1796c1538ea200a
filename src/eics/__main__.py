"""`python -m eics` is the command `eics`."""

from eics.cli import main

main()
