"""Finds the command that came with this package."""

import os
import shutil
import sysconfig


def _default_scheme():
    # Public since Python 3.10.
    get = getattr(sysconfig, "get_default_scheme", None) or getattr(sysconfig, "_get_default_scheme")
    return get()


def command():
    """The path of the command that came with this package."""
    for scheme in (_default_scheme(), "posix_user"):
        path = os.path.join(sysconfig.get_path("scripts", scheme), "allocsample")
        if os.access(path, os.X_OK):
            return path
    # `pip install --target` puts it beside the package.
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin", "allocsample")
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("allocsample")
    if found is None:
        raise FileNotFoundError("the command allocsample is not installed beside this package; reinstall it")
    return found
