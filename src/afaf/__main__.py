"""`python -m afaf` is the command line."""

from afaf.cli.main import main

main()
