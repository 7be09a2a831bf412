# SPDX-License-Identifier: Apache-2.0
"""Images, built by buildah with only chroot: no container engine, no registry. The base is a Debian
that debootstrap makes, in place of the one that the Dockerfile names."""

import contextlib
import functools
import json
import pathlib
import subprocess

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BASE = "localhost/debian"

# Debian's slim images leave these out, too.
NOT_IN_BASE = [
    "./var/cache/apt/archives/*.deb",
    "./var/lib/apt/lists/*",
    "./usr/share/doc/*",
    "./usr/share/locale/*",
    "./usr/share/man/*",
]


def run(*command):
    """The standard output of a command that must succeed."""
    done = subprocess.run(
        [str(word) for word in command], text=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def mirror():
    """The mirror from which this machine's own apt gets Debian 12."""
    found = run(
        *("apt-get", "indextargets", "--format", "$(REPO_URI)"),
        *("Created-By: Packages", "Codename: bookworm", "Component: main"),
    )
    return (found.split() or ["http://deb.debian.org/debian"])[0]


def make_base(archive, folder):
    """Debootstraps Debian 12 into the archive, unless it exists."""
    if archive.exists():
        return
    root = folder / "debian"
    run("debootstrap", "--variant=minbase", "bookworm", root, mirror())
    unfinished = archive.with_suffix(".part")
    without = [f"--exclude={pattern}" for pattern in NOT_IN_BASE]
    run("tar", "--create", f"--file={unfinished}", f"--directory={root}", *without, ".")
    unfinished.rename(archive)


class Image:
    def __init__(self, store, name):
        self._store = store
        self.name = name
        inspected = json.loads(store.buildah("inspect", "--type=image", name))
        self.config = inspected["Docker"]["config"]

    @functools.cached_property
    def root(self):
        """The image's files, in a working container."""
        container = self._store.buildah("from", self.name).strip()
        return pathlib.Path(self._store.buildah("mount", container).strip())

    def bytes(self):
        return sum(path.lstat().st_size for path in self.root.rglob("*") if path.is_file())


class Store:
    """Images and layers in their own folder."""

    def __init__(self, folder, archive):
        self._folder = folder
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", container, archive, "/")
        self.buildah("commit", "--quiet", container, BASE)
        self.buildah("rm", container)

    def buildah(self, *words):
        folders = f"--root={self._folder}/storage", f"--runroot={self._folder}/run"
        return run("buildah", "--storage-driver=vfs", *folders, *words)

    @contextlib.contextmanager
    def change_base(self, name):
        """The root of a container that becomes the image with this name."""
        container = self.buildah("from", BASE).strip()
        yield pathlib.Path(self.buildah("mount", container).strip())
        self.buildah("commit", "--quiet", container, name)
        self.buildah("rm", container)

    def shell_less(self):
        """The name of a base with libraries only, like distroless ones."""
        name = "localhost/shell-less"
        with self.change_base(name) as root:
            for folder in ("usr/bin", "usr/sbin"):  # /bin and /sbin are links to them.
                for program in (root / folder).iterdir():
                    program.unlink()
        return name

    def with_toolkit(self):
        """The name of a base with CUDA where NVIDIA's image has it, behind two links."""
        name = "localhost/with-toolkit"
        with self.change_base(name) as root:
            (root / "usr/local/cuda-99.9/bin").mkdir(parents=True)
            (root / "usr/local/cuda-99.9/bin/nvcc").touch()
            (root / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-99.9")
            (root / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
        return name

    def build(self, target, programs=None, runtime=BASE, **arguments):
        """A target of the Dockerfile. `programs` is a folder with an installed tree in opt/gemmd,
        which replaces the stages that compile; without it these are built, too."""
        compiled = ("build-cpu", "build-cuda") if programs else ()
        name = f"localhost/gemmd:{target}-{runtime.rpartition('/')[2]}"
        self.buildah(
            "build",
            "--isolation=chroot",
            "--format=docker",
            "--pull=never",
            f"--build-arg=DEBIAN={BASE}",
            f"--build-arg=RUNTIME={runtime}",
            *(f"--build-arg={key}={value}" for key, value in arguments.items()),
            *(f"--build-context={stage}={programs}" for stage in compiled),
            f"--target={target}",
            f"--tag={name}",
            SOURCE,
        )
        return Image(self, name)

    def run_in(self, image, *command):
        """The output of a command in a fresh container of the image."""
        container = self.buildah("from", image.name).strip()
        try:
            return self.buildah("run", "--isolation=chroot", container, "--", *command)
        finally:
            self.buildah("rm", container)
