# SPDX-License-Identifier: Apache-2.0
"""One process of an image in its own namespaces (contained.py)."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


class Container:
    """Runs the image's entry point with its own arguments, or with the given ones."""

    def __init__(self, image, folder, arguments=None):
        self._root = image.root
        self._uid, self._gid = image.config["User"].split(":")
        self._environment = dict(line.split("=", 1) for line in image.config.get("Env") or [])
        arguments = image.config["Cmd"] if arguments is None else arguments
        self._log = folder / "log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--net", "--ipc", "--uts"),
                    *("--fork", "--kill-child=KILL"),
                    *(sys.executable, "-B", HERE / "contained.py"),
                    *(self._root, self._uid, self._gid, json.dumps(self._environment)),
                    *(*image.config["Entrypoint"], *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(10)

    @property
    def pid(self):
        """The process ID of the contained process outside the container."""
        parent = self._process.pid
        return int(pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text())

    def log(self):
        return self._log.read_text(errors="backslashreplace")

    def execute(self, *command):
        """Runs a command of the image in the container. Returns its exit code and output."""
        done = subprocess.run(
            [
                *("env", "--ignore-environment"),
                *(f"{name}={value}" for name, value in self._environment.items()),
                *("nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--root", "--wd"),
                *(f"--setuid={self._uid}", f"--setgid={self._gid}", "--", *command),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout

    def wait_until(self, *command, limit_s=60):
        """Waits until a command of the image succeeds in the container."""
        deadline = time.monotonic() + limit_s
        while True:
            assert self._process.poll() is None, f"it ended: {self.log()}"
            try:
                code, text = self.execute(*command)
            except (FileNotFoundError, ValueError):
                code, text = None, "not started"
            if code == 0:
                return text
            assert time.monotonic() < deadline, f"{command}: {text}\n{self.log()}"
            time.sleep(0.1)

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self, limit_s=60):
        """The exit code of the contained process."""
        return self._process.wait(limit_s)

    def status(self):
        """What the kernel says of the contained process, as a dictionary of words."""
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {key: value.split() for key, value in (line.split(":", 1) for line in lines)}
