# SPDX-License-Identifier: Apache-2.0
"""Runs programs that need a newer C library than Debian 12's with that of Debian 13, which apt
fetches and verifies, from a separate folder. Nothing is installed."""

import subprocess

import image

PACKAGES = ("libc6", "libgcc-s1", "libstdc++6")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def fetch(folder):
    """The root folder of the packages, made unless it exists."""
    root = folder / "root"
    if root.exists():
        return root
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {image.mirror()} trixie main\n")
    settings = {
        "APT::Sandbox::User": "root",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
    }
    options = [f"--option={name}={value}" for name, value in settings.items()]
    image.run("apt-get", *options, "update")
    done = subprocess.run(
        ["apt-get", *options, "download", *PACKAGES], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    unfinished = folder / "unfinished"
    for package in folder.glob("*.deb"):
        image.run("dpkg-deb", "--extract", package, unfinished)
    unfinished.rename(root)
    return root


def command(root, program):
    """The command that starts the program with the libraries of the root, and this machine's for
    everything else."""
    own = [f"/{LIBRARIES}", "/lib/x86_64-linux-gnu"]
    path = ":".join(map(str, [root / LIBRARIES, *own]))
    return [str(root / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", path, str(program)]
