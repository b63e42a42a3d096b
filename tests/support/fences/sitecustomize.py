"""On PYTHONPATH, this is a machine without network whose disk is read-only but for one folder.

$FENCE_WRITABLE is that folder; each attempt to reach the network is a line of `network` in it.
"""

import errno
import os
import sys

WRITABLE = os.environ["FENCE_WRITABLE"]
NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
WRITING = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def fence(event, args):
    if event in NETWORK:
        with open(os.path.join(WRITABLE, "network"), "a") as log:
            log.write(f"{event} {args[1:]}\n")
        raise OSError(errno.ENETUNREACH, "no network here")
    if event == "open" and isinstance(args[2], int) and args[2] & FLAGS:
        refuse(args[0])
    elif event in WRITING:
        refuse(args[0])


def refuse(path):
    if isinstance(path, int):  # open already
        return
    whole = os.path.abspath(os.fsdecode(path))
    if not whole.startswith((WRITABLE, "/dev/")):
        raise OSError(errno.EROFS, "Read-only file system", whole)


sys.addaudithook(fence)
