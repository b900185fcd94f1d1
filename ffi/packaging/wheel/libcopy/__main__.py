# SPDX-License-Identifier: MIT OR Apache-2.0
"""``python -m libcopy`` and the command ``libcopy``: the tool, in the place of the interpreter."""

import os
import signal
import sys

import libcopy


def main() -> None:
    """Runs the tool with this command's arguments; its exit status is this process's."""
    # Python ignores these, and what the tool starts would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    tool = libcopy.tool()
    try:
        os.execv(tool, [tool] + sys.argv[1:])
    except OSError as error:
        sys.exit(
            "libcopy: cannot start {}: {} (`pip install --force-reinstall` of the wheel puts its files back)".format(
                tool, error.strerror
            )
        )


if __name__ == "__main__":
    main()
