"""Ranks as processes of this machine, which talk over the loopback interface.

They are forked from a process that has done nothing but import the package. A process of tests has
threads and locks, and garbage whose removal waits for threads that a fork does not have.
"""

import faulthandler
import multiprocessing
import os
import pickle
import random
import socket
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

# No test waits longer for its ranks.
SECONDS = 120


def free_port():
    """A port that nobody has: below those that systems give out, so that nobody gets it now."""
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(10_000, 30_000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def environment(rank, size, port):
    """What a launcher sets for one rank."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    loopback = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    return {name: str(value) for name, value in numbers.items()} | loopback


def launch(size, work, *args, seconds=SECONDS, stopped=()):
    """Call ``work(*args)`` in several processes; returns (exit code, answer) of each rank.

    `work` is a function of a test's module, which the ranks import. The answer is what `work`
    returns, or the text of its error, for which the code is 3. Ranks that are `stopped` give no
    answer, and are killed when the others have given theirs.
    """
    context, port = multiprocessing.get_context("forkserver"), free_port()
    context.set_forkserver_preload(["ready"])
    ends = [context.Pipe(False) for _ in range(size)]
    ranks = [
        context.Process(target=_begin, args=(environment(r, size, port), ends[r][1], work, args))
        for r in range(size)
    ]
    with _importable():
        for process in ranks:
            process.start()
    for _, there in ends:
        there.close()
    answers = [
        "stopped" if rank in stopped else _answer(here, seconds)
        for rank, (here, _) in enumerate(ends)
    ]
    for rank in stopped:
        ranks[rank].kill()
    for process in ranks:
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
    return [(process.exitcode, answer) for process, answer in zip(ranks, answers, strict=True)]


@contextmanager
def _importable():
    """The modules beside this one and above it are found by the process that is forked."""
    here, before = Path(__file__).parent, os.environ.get("PYTHONPATH")
    folders = [str(here), str(here.parent), *sys.path, *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _answer(end, seconds):
    try:
        return pickle.loads(end.recv_bytes()) if end.poll(seconds) else "no answer in time"
    except EOFError:
        return "ended without an answer"


def _begin(variables, end, work, args):
    os.environ.update(variables)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    # The threads of OpenMP do not survive a fork.
    torch.set_num_threads(1)
    code = 0
    try:
        answer = work(*args)
    except BaseException as error:
        code, answer = 3, f"{type(error).__name__}: {error}"
        traceback.print_exc()
    end.send_bytes(pickle.dumps(answer))
    end.close()
    sys.stderr.flush()
    os._exit(code)
