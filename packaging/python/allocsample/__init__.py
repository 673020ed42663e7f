"""allocsample, a low-overhead sampling heap profiler for Linux.

This package carries the command `allocsample` and the library that it loads into programs.

    import allocsample

    profile = allocsample.open("app.allocsample")
    profile.pandas("samples")

In a notebook, `%load_ext allocsample` adds the cell magic `%%allocsample`.
"""

from allocsample.command import command
from allocsample.profile import Profile, ProfileError, open

__all__ = ["Profile", "ProfileError", "command", "open"]
__version__ = "@VERSION@"


def load_ipython_extension(shell):
    """What `%load_ext allocsample` calls."""
    from allocsample.notebook import AllocsampleMagics

    shell.register_magics(AllocsampleMagics)
