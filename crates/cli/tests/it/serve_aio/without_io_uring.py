# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Becomes another program, for which io_uring_setup fails with EPERM, as under the seccomp profiles of container runtimes."""

import ctypes
import os
import struct
import sys

SETUP = 425  # Of io_uring, on all architectures.
EPERM = 1
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
RET_ERRNO, RET_ALLOW = 0x00050000, 0x7FFF0000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

# The number of the system call is at offset 0.
steps = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, SETUP), (RETURN, 0, 0, RET_ERRNO | EPERM), (RETURN, 0, 0, RET_ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))


class Filter(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
program = Filter(len(steps), ctypes.addressof(code))
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
