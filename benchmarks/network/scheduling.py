"""Short turns on the processor, for this process and those it starts."""

import ctypes
import os
import platform

_TURN_NANOSECONDS = 100_000  # the least that Linux allows; its default is about 3 ms
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class _Attributes(ctypes.Structure):
    """struct sched_attr of sched_setattr(2)."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    ]


def take_short_turns() -> None:
    """Asks for turns of 0.1 ms, so that a thread with a message to pass on is not kept waiting.

    Several workers share this machine's cores, and each round between them would wait for the end
    of another thread's turn. Linux before 6.12 ignores it.

    Raises:
        OSError: the kernel refuses.
    """
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes),
        policy=os.SCHED_OTHER,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime=_TURN_NANOSECONDS,
    )
    libc = ctypes.CDLL(None, use_errno=True)
    call = _SCHED_SETATTR[platform.machine()]
    if libc.syscall(call, 0, ctypes.byref(attributes), 0):
        error = ctypes.get_errno()
        raise OSError(error, f"sched_setattr: {os.strerror(error)}")
