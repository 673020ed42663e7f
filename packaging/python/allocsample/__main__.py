"""`python -m allocsample` is the command `allocsample`."""

import os
import sys

from allocsample.command import command


def main():
    try:
        path = command()
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
