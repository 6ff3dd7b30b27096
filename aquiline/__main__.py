"""`python -m aquiline`: the same as the `aquiline` command."""

import sys

from aquiline.cli import main

if __name__ == "__main__":
    sys.exit(main())
