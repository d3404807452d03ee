#!/usr/bin/env python3
"""Time factors, inverses and solves by LAPACK and in tiles over workers: one JSON line a case.

    python benchmarks/factors.py --rows 2000 4000 8000 --workers 1 2 --busy 0 2

Speeds are in billions of operations a second: n^3 / 3 for a Cholesky factor, 2 n^3 / 3 for the
inverse from it, 2000 n^2 for a triangular solve with 2,000 columns. Both ways alternate, and the
best of each counts. ``--busy`` starts so many processes that multiply
matrices all the while. One worker alone is measured in processor seconds, more in wall seconds: the
load of the machine stands in every line.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import date
from functools import partial

BUSY = "import os, torch\nA = torch.ones(500, 500)\nwhile os.getppid() != 1: A @ A"
COLUMNS = 2000


def measure(n, dtype, workers, repeats):
    """The line of one case, in a process whose threads are as many as it has workers."""
    import torch
    from torch.linalg import solve_triangular

    from skscalablegp.linalg.blocks import _blocks as blocks

    torch.set_num_threads(workers)
    blocks._WHOLE_FACTOR = blocks._WHOLE_INVERSE = 0
    clock = time.process_time if workers == 1 else time.perf_counter
    root = torch.randn(n, 100, dtype=dtype, generator=torch.Generator().manual_seed(0))
    H = root @ root.T / 100
    H.diagonal().add_(1)

    def timed(work, *args):
        begun = clock()
        work(*args)
        return clock() - begun

    def whole(A):
        return torch.linalg.cholesky_ex(A, out=(A, torch.empty((), dtype=torch.int32)))[0]

    ways = {"lapack": (whole, torch.cholesky_inverse, partial(solve_triangular, upper=False))}
    ways["tiles"] = (blocks.cholesky_, blocks.cholesky_inverse, blocks.solve_triangular)
    B = torch.ones(COLUMNS, n, dtype=dtype).mT
    took = {way: ([], [], []) for way in ways}
    for _ in range(repeats):
        for way, (factor, inverse, solve) in ways.items():
            A = H.clone().mT
            took[way][0].append(timed(factor, A))
            took[way][1].append(timed(inverse, A))
            took[way][2].append(timed(solve, A, B))
    line = {"n": n, "dtype": str(dtype).removeprefix("torch."), "workers": workers}
    line["clock"] = "cpu" if workers == 1 else "wall"
    for way, seconds in took.items():
        operations = {"factor": n**3 / 3, "inverse": 2 * n**3 / 3, "solve": COLUMNS * n**2}
        for (work, count), found in zip(operations.items(), seconds, strict=True):
            line[f"{way} {work}"] = round(count / 1e9 / min(found), 1)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[2000, 4000, 8000])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtype", nargs="+", default=["float64", "float32"])
    parser.add_argument("--busy", nargs="+", type=int, default=[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        import torch

        n, dtype, workers = arguments.child
        print(json.dumps(measure(int(n), getattr(torch, dtype), int(workers), arguments.repeats)))
        return
    for busy in arguments.busy:
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
        try:
            for n in arguments.rows:
                for dtype in arguments.dtype:
                    for workers in arguments.workers:
                        case = ["--child", str(n), dtype, str(workers)]
                        case += ["--repeats", str(arguments.repeats)]
                        load = round(os.getloadavg()[0], 1)
                        said = subprocess.check_output([sys.executable, __file__, *case], text=True)
                        line = json.loads(said) | {"busy": busy, "load": load}
                        line |= {"cores": os.cpu_count(), "date": date.today().isoformat()}
                        print(json.dumps(line), flush=True)
        finally:
            for other in others:
                other.kill()
                other.wait()


if __name__ == "__main__":
    main()
