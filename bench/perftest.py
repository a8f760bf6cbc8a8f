# SPDX-License-Identifier: BSD-3-Clause
#
# Runs batches of UCX's own ucx_perftest between two processes of this machine and reads their results. Called by
# bench/run_gpu. The processes choose their GPUs themselves: the server takes GPU 0, the client GPU 1.
import importlib.machinery
import importlib.util
import os
import queue
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# ucx_perftest's MB is 2^20 bytes.
BYTES_PER_MB = 1 << 20
# What the plugin says where cuda_ipc, open beside it, keeps freed memory of the peer mapped.
HINT = "UCX_TLS=^cuda_ipc helps"
ROW = re.compile(r"^([A-Za-z]\w*), *(\d+),([\d.,naif+-]+)$")


def load_script(path):
    """A script without the ending .py as a module."""
    loader = importlib.machinery.SourceFileLoader(os.path.basename(path), path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


compare = load_script(os.path.join(HERE, "..", "contrib", "compare_transports"))
size_text = compare.size_text


def processors():
    """A processor for each of two processes, or nothing where there are too few. Unpinned, the two may share a core, and small
    operations take twice as long; so they may on two sockets. (A virtual machine does not say which processors share what: these
    are apart, and in the same half.)"""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[len(allowed) // 8], allowed[3 * len(allowed) // 8]) if len(allowed) >= 16 else ()


def pinned_to(*where):
    """For subprocess's preexec_fn: the process runs there alone."""
    return (lambda: os.sched_setaffinity(0, where)) if where else None


class OutOfTime(Exception):
    """The time budget of the whole run is used up."""


class Row:
    """One line of a batch: a name, ucx_perftest's arguments, iterations."""

    def __init__(self, name, arguments, size, iterations):
        self.name = name
        self.size = size
        self.iterations = iterations
        warmup = max(2, min(500, iterations // 10))
        self.line = f"{name} {arguments} -s {size} -n {iterations} -w {warmup}"


class Result:
    """What ucx_perftest measured in one row."""

    def __init__(self, columns):
        numbers = [float(column) for column in columns.split(",")]
        # typical latency, average latency, overall latency, ...
        self.typical_us = numbers[0]
        self.time_us = numbers[2]
        # A rate of whole operations has too few digits for large ones, a bandwidth in MB/s for small ones: the time has both.
        self.bandwidth = numbers[4] * BYTES_PER_MB
        self.rate = numbers[6]


class Failure:
    """A row that gave no result, and why."""

    def __init__(self, column, row, reason, client, server):
        self.column = column
        self.row = row
        self.reason = reason
        self.client = tail(client)
        self.server = tail(server)

    def is_cured_by_hint(self):
        return any(HINT in line for line in self.client + self.server)

    def text(self):
        return (f"{self.column}: {self.row}: {self.reason}\n  client:\n{indent(self.client)}\n"
                f"  server:\n{indent(self.server)}")


def tail(lines, count=12):
    return [line[:300] for line in lines[-count:]]


def indent(lines):
    return "\n".join("    " + line for line in lines)


class Ucx:
    """A UCX tree (bin, lib, lib/ucx, libs), a plugin folder, and what all runs have in common."""

    def __init__(self, tree, plugin, out, deadline, stall_s):
        self.tree = os.path.abspath(tree)
        self.plugin = os.path.abspath(plugin)
        self.out = out
        self.deadline = deadline
        self.stall_s = stall_s
        self.scratch = tempfile.mkdtemp(prefix="nvl-bench-")
        self.program = self._executable(os.path.join(self.tree, "bin", "ucx_perftest"))

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def remaining_s(self):
        return self.deadline - time.monotonic()

    def _executable(self, path):
        # The programs in the PyPI package are not executable.
        if os.access(path, os.X_OK):
            return path
        copy = os.path.join(self.scratch, os.path.basename(path))
        shutil.copy(path, copy)
        os.chmod(copy, 0o755)
        return copy

    def version(self):
        program = self._executable(os.path.join(self.tree, "bin", "ucx_info"))
        shown = subprocess.run([program, "-v"], env=self.environment({}), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, check=False).stdout
        found = re.search(r"Library version: (\S+)", shown)
        return found.group(1) if found else "of unknown version"

    def environment(self, column):
        """column: the variables that differ; UCX_PLUGIN_PATH is set by "plugin"."""
        result = dict(os.environ)
        for name in [name for name in result if name.startswith("UCX_") and name != "UCX_MODULE_DIR"]:
            del result[name]
        libraries = [os.path.join(self.tree, name) for name in ("lib", "libs")]
        beside = os.path.dirname(self.tree)
        libraries += [os.path.join(beside, name) for name in os.listdir(beside)
                      if name.startswith("libucx") and name.endswith(".libs")]
        # What the caller has comes first: an emulated driver must win over the package's own libraries.
        inherited = result.get("LD_LIBRARY_PATH")
        result["LD_LIBRARY_PATH"] = ":".join(([inherited] if inherited else []) + libraries)
        result["UCX_MODULE_DIR"] = os.path.join(self.tree, "lib", "ucx")
        result["UCX_HANDLE_ERRORS"] = "none"
        result["UCX_WARN_UNUSED_ENV_VARS"] = "n"
        for name, value in column.items():
            if name == "plugin":
                result["UCX_PLUGIN_PATH"] = self.plugin
            else:
                result[name] = value
        return result

    def run(self, name, column, rows, text=None):
        """({row name: Result}, [Failure]) of the rows; goes on behind a row that fails. text: collects the output, and what
        cuda_ipc prevents is tried again in new processes."""
        results, failures = {}, []
        left = list(rows)
        while left and len(failures) < 4:
            pair = Pair(self, column, left)
            reason = pair.run()
            results.update(pair.results)
            if text is not None:
                text.extend(pair.client.lines)
            if pair.is_out_of_time:
                raise OutOfTime(results, failures)
            left = [row for row in left if row.name not in results]
            if not left:
                break
            # A client that ends well has tried every row.
            count = len(left) if pair.client.succeeded() else 1
            names = " ".join(row.name for row in left[:count])
            failure = Failure(name, names, reason, pair.client.lines, pair.server.lines)
            if failure.is_cured_by_hint() and text is not None and pair.results:
                continue
            failures.append(failure)
            if failure.is_cured_by_hint() and text is None:
                break
            del left[:count]
        return results, failures


class Process:
    """One end of a ucx_perftest; its lines are kept."""

    def __init__(self, command, environment, inbox=None, processor=()):
        self.lines = []
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, errors="replace",
                                        preexec_fn=pinned_to(*processor))
        self.reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self.reader.start()

    def _read(self, inbox):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if inbox is not None:
                inbox.put(line)
        if inbox is not None:
            inbox.put(None)

    def succeeded(self):
        return self.process.poll() == 0

    def stop(self, patience_s):
        try:
            self.process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(timeout=5)


class Pair:
    """A server and a client that run a batch once."""

    def __init__(self, ucx, column, rows):
        self.ucx = ucx
        self.rows = rows
        self.results = {}
        self.is_out_of_time = False
        self.server = self.client = NoProcess()
        self.inbox = queue.Queue()
        self.environment = ucx.environment(column)
        with tempfile.NamedTemporaryFile("w", dir=ucx.scratch, suffix=".batch", delete=False) as batch:
            batch.write("".join(row.line + "\n" for row in rows))
        self.port = free_port()
        self.command = [ucx.program, "-p", str(self.port), "-b", batch.name, "-f", "-v"]

    def start(self):
        where = processors()
        self.server = Process(self.command, self.environment, None, where[:1])
        compare.wait_until_listening(self.server.process, self.port)
        self.client = Process(self.command + ["127.0.0.1"], self.environment, self.inbox, where[1:])

    def run(self):
        """Why it ended without all results, or nothing."""
        try:
            self.start()
            return self.collect()
        except compare.RunFailed as failure:
            return str(failure)
        finally:
            is_complete = len(self.results) == len(self.rows)
            for end in (self.client, self.server):
                end.stop(10 if is_complete else 0.5)

    def collect(self):
        while True:
            patience = min(self.ucx.stall_s, self.ucx.remaining_s())
            try:
                line = self.inbox.get(timeout=max(0.01, patience))
            except queue.Empty:
                if self.ucx.remaining_s() <= 0:
                    self.is_out_of_time = True
                    return "the time budget is used up"
                return f"no result within {self.ucx.stall_s} s"
            if line is None:
                self.client.process.wait()
                return "" if len(self.results) == len(self.rows) else f"the client ended with {self.client.process.returncode}"
            if HINT in line:
                return "cuda_ipc stands in the way"
            match = ROW.match(line.strip())
            if match:
                self.results[match.group(1)] = Result(match.group(3))


def run_together(pairs):
    """Runs pairs at the same time; the reasons why they ended early."""
    reasons = [""] * len(pairs)

    def run(number):
        reasons[number] = pairs[number].run()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reasons


class NoProcess:
    """Stands for an end that was not started."""

    lines = []

    def succeeded(self):
        return False

    def stop(self, patience_s):
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
