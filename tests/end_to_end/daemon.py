# SPDX-License-Identifier: Apache-2.0
"""One gemmd process: started in its own folder, observed through /proc, ended by its pid."""

import contextlib
import functools
import os
import re
import signal
import subprocess
import time

SANITIZER_REPORT = re.compile(
    r"ERROR: \w+Sanitizer|WARNING: \w+Sanitizer|runtime error:|SUMMARY: \w+Sanitizer"
)
LOG_LINE = re.compile(r'(?:\w+=(?:"(?:[^"\\]|\\.)*"|[^\s"=]+)(?: |$))+')
LOG_PAIR = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|([^\s"=]+))')


# How long a test waits for something that must happen eventually. A slow machine must not fail.
PATIENCE_S = 60


def wait_until(condition, limit_s, what):
    """Polls until the condition returns a true value, and returns that; fails after the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.01)


def last_value(value, is_enough, limit_s):
    """Polls until the value is enough, or has not changed for the limit, however slowly it changes on a
    busy machine. Returns it."""
    seen, since = None, time.monotonic()
    while True:
        now = value()
        if is_enough(now):
            return now
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > limit_s:
            return now
        time.sleep(0.01)


def parse_log_line(line):
    """The pairs of one log line; fails if the line has anything else."""
    assert LOG_LINE.fullmatch(line), f"not a line of key=value pairs: {line!r}"
    pairs = LOG_PAIR.findall(line)
    keys = [key for key, _, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key twice: {line!r}"
    return {key: quoted or bare for key, quoted, bare in pairs}


@functools.cache
def grpc_version_of(binary):
    """Of the gRPC that a gemmd is built with: (1, 51)."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in re.search(r"^gRPC (\d+)\.(\d+)", told.stdout, re.MULTILINE).groups())


class Daemon:
    """Started by the constructor; serves once `wait_until_ready` has returned. It listens on a free
    port and a unix socket, or on `listen`, or, if that is empty, where flags or files say. Its
    environment is that of the test and `environment`. Its log is in a file of its own, or in `stderr`."""

    def __init__(
        self,
        binary,
        folder,
        *flags,
        listen=None,
        open_files=None,
        address_space=None,
        environment=None,
        stderr=None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.binary = binary
        self.folder = folder
        self.socket_path = folder / "gemmd.sock"
        self.ready_file = folder / "ready"
        self.stderr_path = folder / "stderr"
        self.addresses = []
        self.was_awaited = False
        if listen is None:
            listen = f"127.0.0.1:0,unix:{self.socket_path}"

        self.command = [str(binary), f"--ready-file={self.ready_file}", *flags]
        if listen:
            self.command.append(f"--listen={listen}")
        limits = []
        if open_files:
            soft, hard = open_files
            limits += [f"ulimit -S -n {soft}", f"ulimit -H -n {hard}"]
        if address_space:
            # More processors mean more threads and more malloc arenas, which take addresses. When
            # OpenBLAS is loaded it reserves 128 MiB of them per OpenMP thread, and retries forever.
            environment = {"OMP_NUM_THREADS": "2", **(environment or {})}
            processors = sorted(os.sched_getaffinity(0))[:2]
            limits.append(f"taskset -cp {','.join(map(str, processors))} $$ >/dev/null")
            limits.append(f"ulimit -v {address_space // 1024}")
        if limits:
            # Started through a shell: code that runs in the child before the program does would
            # meet gRPC's threads there, which abort a child when they find their files closed.
            self.command = ["bash", "-c", " && ".join([*limits, 'exec "$@"']), "bash", *self.command]
        with open(self.stderr_path, "wb") as own:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr or own,
                env={**os.environ, **(environment or {})},
            )
        self.pid = self.process.pid

    def wait_until_ready(self, limit_s=2 * PATIENCE_S):
        def ready():
            assert self.process.poll() is None, (
                f"gemmd ended with {self.process.returncode}: {self.stderr()}"
            )
            return self.ready_file.exists()

        wait_until(ready, limit_s, "gemmd ready")
        self.addresses = self.ready_file.read_text().split()
        return self

    @property
    def tcp(self):
        return next(a for a in self.addresses if a.startswith("127.0.0.1:"))

    @property
    def port(self):
        return int(self.tcp.rsplit(":", 1)[1])

    @property
    def unix(self):
        return next(a for a in self.addresses if a.startswith("unix:"))

    def grpc_version(self):
        return grpc_version_of(self.binary)

    def stderr(self):
        return self.stderr_path.read_text(errors="backslashreplace")

    def log(self):
        """The log so far, as a list of dictionaries. While the daemon runs, a last line without an
        end may be incomplete and is left out."""
        is_complete = self.process.poll() is not None
        text = self.stderr()
        if not is_complete:
            text = text[: text.rfind("\n") + 1]
        return [parse_log_line(line) for line in text.splitlines()]

    def events(self, name):
        return [line for line in self.log() if line["event"] == name]

    def awaited_events(self, name, limit_s=PATIENCE_S):
        """The events once there is one: an effect may be visible before its line is written."""
        return wait_until(lambda: self.events(name), limit_s, f"{name} in the log")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, limit_s=2 * PATIENCE_S):
        """The exit code. A daemon that does not end in time is killed, and the test fails."""
        self.was_awaited = True
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"gemmd did not end within {limit_s} s") from None
        self.check_sanitizers()
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, limit_s=2 * PATIENCE_S):
        """Ends the daemon as an operator would, and checks that it ends well."""
        self.signal(signal.SIGTERM)
        code = self.wait(limit_s)
        assert code == 0, f"gemmd ended with {code}: {self.stderr()[-4000:]}"

    def check_sanitizers(self):
        text = self.stderr()
        found = SANITIZER_REPORT.search(text)
        assert not found, text[max(0, found.start() - 200) :][:8000]

    # What the kernel says of the process.

    def _status(self, key):
        with open(f"/proc/{self.pid}/status") as status:
            return int(next(line for line in status if line.startswith(key + ":")).split()[1])

    def peak_rss_bytes(self):
        """The peak since the start, or since forget_peak."""
        return self._status("VmHWM") * 1024

    def forget_peak(self):
        """Resets the peak. Returns the resident memory."""
        with open(f"/proc/{self.pid}/clear_refs", "w") as file:
            file.write("5")
        return self.rss_bytes()

    def rss_bytes(self):
        return self._status("VmRSS") * 1024

    def memory_bytes(self):
        """What is resident of the daemon and its workers; what they share counts once."""
        total = 0
        for pid in (self.pid, *self.children()):
            # A worker may end meanwhile.
            with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
        return total

    def mapped_bytes(self):
        """Mapped addresses, as RLIMIT_AS counts them."""
        return self._status("VmSize") * 1024

    def anonymous_bytes(self):
        """Without memory that is shared with a worker."""
        return self._status("RssAnon") * 1024

    def children(self):
        """Child processes that have not ended."""
        return self.gpu_workers() | self.host_workers()

    def gpu_workers(self):
        return self._children(are_host_s=False)

    def host_workers(self):
        """The workers of `cpu` and of simulators."""
        return self._children(are_host_s=True)

    def _children(self, are_host_s):
        command = ["ps", "--ppid", str(self.pid), "-o", "pid=,comm="]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
        # The system reports 15 characters of a name.
        return {int(pid) for pid, name in lines if name.startswith("gemmd-host-work") == are_host_s}

    def threads(self):
        return self._status("Threads")

    def open_files(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def open_file_limits(self):
        """The soft and the hard limit."""
        with open(f"/proc/{self.pid}/limits") as limits:
            line = next(line for line in limits if line.startswith("Max open files"))
        return tuple(int(word) for word in line.split()[3:5])
