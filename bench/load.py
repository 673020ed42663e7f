"""Clients that keep a server busy and compare every answer."""

import http.client
import subprocess
import threading
import time

from bench.servers import PATIENCE, Failure, listens


class Load:
    """Runs a source's clients, one thread each, from the beginning of a `with` to its end.

    A source has `clients`, the number of them, and `work(number, load)`, which asks until `load.is_over`, counts right answers
    in `load.answers[number]` and raises for a wrong one.
    """

    def __init__(self, source):
        self.source, self.is_over = source, threading.Event()
        self.answers, self.failures = [0] * source.clients, []

    def __enter__(self):
        def work(number):
            try:
                self.source.work(number, self)
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")

        self.threads = [threading.Thread(target=work, args=(number,)) for number in range(self.source.clients)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join()

    def must_go_on(self):
        """Fails if an answer was wrong; or if none comes any more."""
        before = sum(self.answers)
        for _ in range(10 * PATIENCE):
            if self.failures:
                raise Failure(self.failures[0])
            if sum(self.answers) > before:
                return
            time.sleep(0.1)
        raise Failure("the server answers no more")


class Pages:
    """Asks a web server for /0, /1 and so on over connections that stay open.

    `answer(number)` is what `decoded` must make of the body.
    """

    clients = 4

    def __init__(self, port, answer, decoded=bytes.decode, numbers=1 << 60, headers={}):
        self.port, self.answer, self.decoded, self.numbers, self.headers = port, answer, decoded, numbers, headers
        # Whether the server may close a connection instead of answering, as one does that a debugger has call functions.
        self.may_close = False

    def is_up(self):
        """Whether it answers: one may listen long before."""
        if not listens(self.port):
            return False
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", "/0", headers=self.headers)
            return connection.getresponse().read() != b""
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def work(self, number, load):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE / 10)
        at = number
        while not load.is_over.is_set():
            try:
                connection.request("GET", f"/{at % self.numbers}", headers=self.headers)
                answer = connection.getresponse()
                body = answer.read()
            except (http.client.RemoteDisconnected, ConnectionError):
                if not self.may_close:
                    raise
                connection.close()
                continue
            if answer.status != 200 or self.decoded(body) != self.answer(at % self.numbers):
                raise Failure(f"/{at % self.numbers} was answered with status {answer.status} and {body[:60]!r}")
            load.answers[number] += 1
            at += self.clients
        connection.close()


class Tool:
    """A load generator that runs for a while and then says what it did; again until told.

    `outcome(printed)` gives the number of right answers and a list of failures.
    """

    clients = 1

    def __init__(self, command, outcome, directory):
        self.command, self.outcome, self.directory = command, outcome, directory

    def work(self, number, load):
        while not load.is_over.is_set():
            done = subprocess.run(self.command, cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE)
            count, failures = self.outcome(done.stdout + done.stderr)
            if done.returncode != 0 or failures:
                raise Failure((failures or [done.stderr.strip() or f"status {done.returncode}"])[0])
            load.answers[number] += count
