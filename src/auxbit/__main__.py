"""`python -m auxbit`."""

from auxbit.cli import main

if __name__ == "__main__":
    main()
