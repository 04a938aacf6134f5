"""`python -m thalweg`: the command line, where the script `thalweg` is not on the path."""

from thalweg.cli import main

if __name__ == "__main__":
    main()
