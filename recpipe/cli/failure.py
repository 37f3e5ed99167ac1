"""What the user sees when something goes wrong: one message; the trace of an unexpected error goes to a file."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable

from recpipe.cli.ctrl_c import EXIT_INTERRUPTED
from recpipe.errors import ConfigError, RecpipeError
from recpipe.train.failures import AlreadyReported, describe
from recpipe.train.interrupt import heard
from recpipe.train.launch import found_workers
from recpipe.train.leaving import Stopped, signals_raise

EXIT_FAILURE = 1
EXIT_CONFIG = 2


def guarded(run: Callable[[], int]) -> int:
    """Calls `run`; an exception becomes a message on stderr and an exit code.

    A failed worker of torchrun or SLURM leaves at once: its threads and process groups may wait for ranks that are lost.
    """
    code = _guarded(run)
    if code and int((found_workers(os.environ) or {}).get("WORLD_SIZE", 1)) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _guarded(run: Callable[[], int]) -> int:
    try:
        # Ctrl-C has a handler by now; see `recpipe.cli.ctrl_c`.
        with signals_raise([kind for kind in heard() if kind != signal.SIGINT]):
            return run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Stopped as stopped:
        print(f"stopped by {stopped.name}", file=sys.stderr)
        return int(stopped.code or EXIT_FAILURE)
    except BrokenPipeError:
        # The reader of our output has gone; a second failure at interpreter exit would print a trace.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except AlreadyReported:
        return EXIT_FAILURE
    except RecpipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILURE
    except Exception as error:
        print(f"error: {describe(error)}\nThe full trace is in {_save_trace(error)}", file=sys.stderr)
        return EXIT_FAILURE


def _save_trace(error: BaseException) -> str:
    """The file with the trace: in the run directory where there is one already."""
    if hasattr(error, "trace_file"):
        return str(error.trace_file)
    handle, path = tempfile.mkstemp(prefix="recpipe-", suffix=".txt")
    with os.fdopen(handle, "w") as file:
        file.writelines(traceback.format_exception(error))
    return path
