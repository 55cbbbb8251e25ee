"""`python -m episodelake`: the command line, where its script is not on the path."""

from .terminal.start import main

if __name__ == "__main__":
    main()
