"""`python -m auxbit.cli`."""

from auxbit.cli import main

main()
