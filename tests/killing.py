"""Programs that die by SIGKILL at a chosen line of some files: to see what survives that."""

import os
import signal
import sys
import time
import traceback


def log_line(path, line):
    """What the world has seen: once this returns, it has."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode() + b"\n")
    os.fsync(handle)
    os.close(handle)


def dying_at(line, watched):
    """A trace function that kills the process when it comes to its n-th line of the watched files."""
    left = line

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in watched:
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def lines_of(work, watched):
    """How many lines of the watched files some work runs through."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line" and frame.f_code.co_filename in watched
        return trace if frame.f_code.co_filename in watched else None

    sys.settrace(trace)
    work()
    sys.settrace(None)
    return count


def forked(work):
    """Run in a child that never returns here."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    return child


def killed(work, dice, lines, watched):
    """Run in a child that dies at a random line, or (one of four) after a random time; whether it did."""
    by_time, line = dice.random() < 0.25, dice.randint(1, lines)

    def traced():
        if not by_time:
            sys.settrace(dying_at(line, watched))
        work()

    child = forked(traced)
    if by_time:
        time.sleep(dice.uniform(0.0, 0.1))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("the child failed: its error is above")
    return os.WIFSIGNALED(status)
