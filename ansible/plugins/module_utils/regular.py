# SPDX-License-Identifier: Apache-2.0
"""Reads a file that may be anything: a pipe would wait for a writer, a device never end."""

from __future__ import annotations

import errno
import os
import stat


def read(path, most):
    """At most so many bytes of a file and one more. OSError if there is none."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
        if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        return f.read(most + 1)
