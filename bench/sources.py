"""Sources that others publish: of Debian's packages, by apt's own client with lists of its own (the system's are left as they
are), and of projects, by git. apt compares check sums; of git a commit's name is one."""

import pathlib
import re
import shutil
import subprocess
import tarfile


class NoSource(Exception):
    """Why there is none."""


def debian_release():
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.split("=")[1].strip('"')
    raise NoSource("no Debian")


def source_of(package, wanted, cache):
    """The directory with the package's source, of which only what `wanted` matches is unpacked, below `cache`."""
    place = cache / package
    done = place / ".done"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        fetch(package, place, cache)
        for archive in sorted(place.glob("*.orig.tar.*")):
            with tarfile.open(archive) as tar:
                members = [member for member in tar if re.search(wanted, member.name)]
                tar.extractall(place / "tree", members=members, filter="data")
            archive.unlink()
        done.touch()
    return next((place / "tree").iterdir())


def fetch(package, place, cache):
    if shutil.which("apt-get") is None:
        raise NoSource("no apt-get")
    lists = cache / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources = cache / "sources.list"
    sources.write_text(f"deb-src http://deb.debian.org/debian {debian_release()} main\n")
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null",
           "-o", f"Dir::State::lists={lists}"]
    for arguments in (["update"], ["source", "--download-only", package]):
        done = subprocess.run([*apt, *arguments], cwd=place, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise NoSource(f"apt-get {arguments[0]}: {done.stderr.strip()[-200:]}")


def git_tree(name, url, ref, commit, cache):
    """The directory with the files of the commit, which the repository's `ref` leads to, below `cache`."""
    if shutil.which("git") is None:
        raise NoSource("no git")
    place = cache / name
    if not (place / ".done").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        # Checked as it comes, or an object could have another content than its name says.
        git = ["git", "-c", "transfer.fsckObjects=true", "-C", str(place)]
        for arguments in (["init", "--quiet"], ["fetch", "--quiet", "--depth=1", url, ref], ["checkout", "--quiet", commit]):
            done = subprocess.run([*git, *arguments], capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                raise NoSource(f"git {arguments[0]}: {done.stderr.strip()[-200:]}")
        (place / ".done").touch()
    return place
