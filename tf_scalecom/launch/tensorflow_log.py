"""What TensorFlow's C++ runtime says of itself when it starts, and how to have it say less.

TF_CPP_MIN_LOG_LEVEL=1 ends its remarks, not its warnings and errors. Some remarks come before it
has read that, and two are logged as errors, about a missing GPU driver and about what a CPU lacks:
these are left out of what is shown. Log files have them.
"""

import re

LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
EVERYTHING, WITHOUT_REMARKS = "0", "1"

_REMARK = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    # absl's log before it is initialised: it counts the seconds since 1970.
    r"|I0000 00:00:\d+\.\d+ +\d+ \S+\.(?:cc|h):\d+\] "
    # 303: there is no driver's library. Whatever else is wrong with a GPU stays.
    r"|E0000 00:00:\d+\.\d+ +\d+ \S+\.cc:\d+\] failed call to cuInit: .*\(303\)$"
    r"|E0000 00:00:\d+\.\d+ +\d+ \S+\.cc:\d+\] oneDNN supports \w+ only on platforms with "
)


def is_remark(line: str) -> bool:
    """Whether a line of output is a remark of the runtime about itself."""
    return _REMARK.match(line) is not None
