"""One process of a pool: reads cases on standard input, writes outcomes on standard output.

Started as ``python -m weavejax.workbench.worker`` rather than forked or spawned: a fork would copy
the threads of a running JAX, and a spawn would run the caller's script again.
"""

from __future__ import annotations

import os
import pickle
import sys

from weavejax.workbench.cases import Outcome, solve


def main() -> None:
    """Serve until standard input closes."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not end up between the replies
    while True:
        try:
            case = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        reply: Outcome | Exception
        try:
            reply = solve(case)
        except Exception as error:  # the caller raises it
            reply = error
        try:
            pickle.dump(reply, replies)
            replies.flush()
        except BrokenPipeError:  # the caller is gone
            os._exit(0)


if __name__ == "__main__":
    main()
