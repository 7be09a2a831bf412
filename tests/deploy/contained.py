# SPDX-License-Identifier: Apache-2.0
"""Becomes the process of a container: started as root and as PID 1 of new namespaces, it narrows
itself to what a pod under Kubernetes' restricted profile has. The root is read-only.

usage: contained.py ROOT UID GID ENVIRONMENT_JSON PROGRAM ARGUMENT...
"""

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys

# From linux/prctl.h, linux/sockios.h, net/if.h and linux/capability.h.
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
LAST_CAPABILITY = "/proc/sys/kernel/cap_last_cap"


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def prepare_root(root):
    mount("--bind", root, root)
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/dev")
    for name, number in (("null", 3), ("zero", 5), ("urandom", 9)):
        os.mknod(f"{root}/dev/{name}", 0o666 | 0o020000, os.makedev(1, number))
        os.chmod(f"{root}/dev/{name}", 0o666)
    mount("-o", "remount,ro,bind", root)


def raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))


def drop_privileges(uid, gid, last_capability):
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(last_capability + 1):
        assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0, os.strerror(
            ctypes.get_errno()
        )
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)  # Drops every remaining capability.


def main():
    root, uid, gid, environment, *command = sys.argv[1:]
    with open(LAST_CAPABILITY) as file:
        last_capability = int(file.read())
    raise_loopback()
    prepare_root(root)
    os.chroot(root)
    os.chdir("/")
    drop_privileges(int(uid), int(gid), last_capability)
    os.execve(command[0], command, json.loads(environment))


main()
