"""`python -m pushforward` is the command line."""

import sys

from pushforward.cli import main

if __name__ == "__main__":
    sys.exit(main())
