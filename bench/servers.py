"""Real servers, and what is left in them when we have gone: for scripts that attach to them under load."""

import glob
import os
import signal
import socket
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMAND = os.path.abspath(os.environ.get("ALLOCSAMPLE", os.path.join(ROOT, "target/release/allocsample")))
# Seconds, on a machine that others keep busy.
PATIENCE = 600
ENDING_S = 10
# A shell's background job ignores it, and so would the servers, which are ended by it.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Skip(Exception):
    """A program is not here."""


class Failure(Exception):
    """Somebody noticed."""


def ours(*arguments, directory):
    done = subprocess.run([COMMAND, *arguments], cwd=directory, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise Failure(f"allocsample {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def wait_for(what, is_there):
    for _ in range(10 * PATIENCE):
        if is_there():
            return
        time.sleep(0.1)
    raise Failure(f"{what} did not come up")


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def left_behind(pid):
    """Descriptors of a process that lead to files of ours, after the moments that a drain thread may take to end.

    That thread has a table of its own, and no name by which to know it.
    """
    for _ in range(10 * ENDING_S):
        links = glob.glob(f"/proc/{pid}/task/*/fd/*")
        left = sorted({path for path in map(read_link, links) if "allocsample" in path})
        if not left:
            break
        time.sleep(0.1)
    return left


def read_link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def mappings_of_ours(pid):
    """The library stays, and what it keeps for the next time; the ring must go."""
    with open(f"/proc/{pid}/maps") as file:
        lines = [line.split(None, 5) for line in file]
    return sorted((fields[5].strip(), fields[1]) for fields in lines if len(fields) > 5 and "allocsample" in fields[5])


class Server:
    """A process of ours that ends with the demonstration."""

    def __init__(self, command, directory, **options):
        log = open(os.path.join(directory, "server.log"), "w")
        self.child = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, **options)

    def __enter__(self):
        return self.child

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGINT)
        try:
            self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
