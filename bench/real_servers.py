"""Real servers, each started for a `with`, together with clients that keep it busy and compare every answer."""

import contextlib
import dataclasses
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable

from bench.installed import first_line, need, postgresql
from bench.load import Pages, Tool
from bench.servers import PATIENCE, ROOT, Failure, Server, Skip, free_port, listens, wait_for

PROGRAMS = os.path.join(ROOT, "bench/programs/servers")
sys.path.insert(0, PROGRAMS)
from page import answer as json_page  # noqa: E402

PAGES = 50


@dataclasses.dataclass
class Running:
    """A server that is up."""

    name: str
    """With its version."""
    sources: list
    """For `bench.load.Load`; the first one is the usual tool, where there is one."""
    processes: Callable[[], list[int]]
    """Those that may be attached to, as long as there is load. The last one is there without load too, and forked the others."""
    number_of_processes: int = 1
    """Under load."""

    def loaded_processes(self):
        """Waits for them."""
        wait_for("the load", lambda: len(self.processes()) == self.number_of_processes)
        return self.processes()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def title(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().replace("\0", " ")
    except OSError:
        return ""


class Replies:
    """Asks redis-server in batches, on a connection for each client, and compares every byte that comes back."""

    clients = 2

    def __init__(self, port):
        self.port = port

    def work(self, number, load):
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE / 10) as connection:
            turn = 0
            while not load.is_over.is_set():
                turn += 1
                asked, expected = self.batch(number, turn)
                connection.sendall(asked)
                got = b""
                while len(got) < len(expected):
                    piece = connection.recv(len(expected) - len(got))
                    if not piece:
                        raise Failure("redis-server closed a connection")
                    got += piece
                if got != expected:
                    raise Failure(f"redis-server answered with {got[:80]!r}")
                load.answers[number] += 3 * PAGES + 1

    @staticmethod
    def batch(number, turn):
        asked, expected = [], []

        def ask(reply, *words):
            asked.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
            expected.append(reply)

        for at in range(PAGES):
            key, value = b"checked:%d:%d" % (number, at), b"%d " % turn * (at + 1)
            ask(b"+OK\r\n", b"SET", key, value)
            ask(b"$%d\r\n%s\r\n" % (len(value), value), b"GET", key)
            ask(b":%d\r\n" % (at + 1), b"RPUSH", b"list:%d:%d" % (number, turn), value)
        ask(b":1\r\n", b"DEL", b"list:%d:%d" % (number, turn))
        return b"".join(asked), b"".join(expected)


def benchmark_outcome(printed):
    return 4 * 20_000, [line for line in printed.splitlines() if "rror" in line]


@contextlib.contextmanager
def redis(directory):
    need("redis-server", "redis-benchmark")
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    tool = ["redis-benchmark", "-p", str(port), "-q", "-n", "20000", "-c", "20", "-r", "1000", "-d", "200"]
    tool += ["-t", "set,get,lpush,hset"]
    version = re.search(r"v=(\S+)", first_line("redis-server", "--version")).group(1)
    with Server(command, directory) as server:
        wait_for("redis-server", lambda: listens(port))
        sources = [Tool(tool, benchmark_outcome, directory), Replies(port)]
        yield Running(f"redis-server {version}", sources, lambda: [server.pid])


class Transactions:
    """One run of pgbench that lasts, since a session's process must be there as long as we are attached to it.

    Each transaction adds the same number to three tables and notes it in a fourth: their sums are compared at the end, and the
    fourth's rows are counted.
    """

    clients = 1
    SUMS = """select (select coalesce(sum(abalance), 0) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
        (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)"""
    ROWS = "select count(*) from pgbench_history"

    def __init__(self, tool, ask, environment):
        self.tool, self.ask, self.environment = tool, ask, environment

    def work(self, number, load):
        rows = int(self.ask(self.ROWS))
        child = subprocess.Popen(
            [*self.tool, "-c", "4", "-j", "2", "-P", "1", "-n", "-T", "86400", "postgres"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment, cwd="/",
        )
        try:
            # One line a second, whatever the server does; what it says of transactions is rounded.
            for line in child.stdout:
                found = re.match(r"progress: ([\d.]+) s, ([\d.]+) tps, .* (\d+) failed", line)
                if found:
                    load.answers[number] += round(float(found.group(2)))
                if (found and found.group(3) != "0") or re.search("aborted|FATAL|ERROR", line):
                    raise Failure(line.strip())
                if load.is_over.is_set():
                    break
            else:
                raise Failure(f"pgbench ended with status {child.wait()}")
        finally:
            child.send_signal(signal.SIGINT)
            child.communicate()
        sums = set(self.ask(self.SUMS).split("|"))
        if len(sums) != 1:
            raise Failure(f"the tables' sums differ: {sums}")
        load.answers[number] = int(self.ask(self.ROWS)) - rows


class Sessions:
    """Opens a session after the other, each a new child of the server, and compares what it computes."""

    clients = 1

    def __init__(self, ask):
        self.ask = ask

    def work(self, number, load):
        at = 0
        while not load.is_over.is_set():
            at += 1
            said = self.ask(f"select sum(n), md5(string_agg(n::text, ',')) is not null from generate_series(1, {at}) n")
            if said != f"{at * (at + 1) // 2}|t":
                raise Failure(f"PostgreSQL answered with {said[:80]!r}")
            load.answers[number] += 1


@contextlib.contextmanager
def postgres(directory):
    programs = {name: postgresql(name) for name in ("postgres", "initdb", "pgbench", "psql")}
    as_user = {}
    if os.getuid() == 0:
        for user in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(user)
                break
            except KeyError:
                continue
        else:
            raise Skip("PostgreSQL does not run as root, and there is no other user")
        os.chmod(directory, 0o755)
        as_user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    data = os.path.join(directory, "data")
    os.mkdir(data)
    if as_user:
        os.chown(data, as_user["user"], as_user["group"])
    environment = {**os.environ, "LC_ALL": "C", "HOME": data}
    quiet = {"capture_output": True, "text": True, "timeout": PATIENCE, "env": environment, "cwd": "/", **as_user}
    made = subprocess.run([programs["initdb"], "-D", os.path.join(data, "db"), "-U", "me", "-A", "trust"], **quiet)
    if made.returncode != 0:
        raise Skip(f"initdb: {made.stderr.strip().splitlines()[-1:]}")
    port = free_port()
    command = [programs["postgres"], "-D", os.path.join(data, "db"), "-p", str(port), "-k", data, "-c", "fsync=off"]
    where = ["-h", "127.0.0.1", "-p", str(port), "-U", "me"]
    tool = [programs["pgbench"], *where]

    def ask(statement):
        done = subprocess.run([programs["psql"], *where, "-XAtqc", statement, "postgres"], **quiet)
        if done.returncode != 0:
            raise Failure(done.stderr.strip())
        return done.stdout.strip()

    with Server(command, directory, env=environment, **as_user) as server:
        wait_for("postgres", lambda: subprocess.run([*tool, "-i", "-q", "postgres"], **quiet).returncode == 0)

        def processes():
            """Of pgbench's four sessions, and the one that all others are forked from."""
            return [pid for pid in children(server.pid) if "me postgres 127.0.0.1" in title(pid)][:4] + [server.pid]

        name = f"PostgreSQL {first_line(programs['postgres'], '--version').split()[2]}"
        yield Running(name, [Transactions(tool, ask, environment), Sessions(ask)], processes, 5)


def static_page(number):
    return f"<p>hello {number}</p>" * 200


def wrk_outcome(printed):
    failures = [line.strip() for line in printed.splitlines() if re.match(r"\s*(Socket errors|Non-2xx|wrong answer)", line)]
    return int(re.search(r"(\d+) requests in", printed).group(1)), failures


@contextlib.contextmanager
def nginx(directory):
    need("nginx")
    port = free_port()
    os.chmod(directory, 0o755)
    for number in range(PAGES):
        path = os.path.join(directory, str(number))
        with open(path, "w") as file:
            file.write(static_page(number))
        os.chmod(path, 0o644)
    configuration = f"""
daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/error.log;
{"user root;" if os.getuid() == 0 else ""}
events {{ worker_connections 256; }}
http {{ access_log off; keepalive_requests 1000000000; gzip on; default_type text/html;
  client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};
  uwsgi_temp_path {directory}; scgi_temp_path {directory};
  server {{ listen 127.0.0.1:{port}; root {directory}; }} }}
"""
    path = os.path.join(directory, "nginx.conf")
    with open(path, "w") as file:
        file.write(configuration)
    version = first_line("nginx", "-v").rpartition("/")[2]
    with Server(["nginx", "-c", path], directory) as server:
        wait_for("nginx", lambda: listens(port) and children(server.pid))
        packed = {"Accept-Encoding": "gzip"}
        sources = [Pages(port, static_page, lambda body: zlib.decompress(body, 31).decode(), PAGES, packed)]
        if shutil.which("wrk"):
            check = ["-s", os.path.join(PROGRAMS, "check.lua")]
            address = f"http://127.0.0.1:{port}/7"
            tool = ["wrk", "-t", "2", "-c", "16", "-d", "2s", *check, address, "--", os.path.join(directory, "7")]
            sources.insert(0, Tool(tool, wrk_outcome, directory))
        yield Running(f"nginx {version}", sources, lambda: children(server.pid)[:1])


@contextlib.contextmanager
def python(directory, interpreter="/usr/bin/python3"):
    if not os.path.exists(interpreter):
        interpreter = sys.executable
    port = free_port()
    with Server([interpreter, os.path.join(PROGRAMS, "page.py"), str(port)], directory) as server:
        source = Pages(port, json_page)
        wait_for("the web server", source.is_up)
        yield Running(f"http.server of {first_line(interpreter, '--version')}", [source], lambda: [server.pid])


def deflated_page(number):
    return f"hello {number} " * 2000


def deflated_pages(port):
    return Pages(port, deflated_page, lambda body: zlib.decompress(body).decode())


@contextlib.contextmanager
def jvm(directory, java="java"):
    need(java)
    port = free_port()
    program = ["-Dsun.net.httpserver.nodelay=true", os.path.join(PROGRAMS, "Page.java"), str(port)]
    version = first_line(java, "-version").split('"')[1]
    with Server([java, "-Xmx256m", *program], directory) as server:
        source = deflated_pages(port)
        wait_for("the JVM", source.is_up)
        yield Running(f"HttpServer of OpenJDK {version}", [source], lambda: [server.pid])


@contextlib.contextmanager
def node(directory, program="node"):
    need(program)
    port = free_port()
    with Server([program, os.path.join(PROGRAMS, "page.js"), str(port)], directory) as server:
        source = deflated_pages(port)
        wait_for("Node.js", source.is_up)
        yield Running(f"Node.js {first_line(program, '--version').lstrip('v')}", [source], lambda: [server.pid])
