#!/usr/bin/env python3
"""Time products with a kernel matrix, three ways in one run, as lines of JSON.

    python benchmarks/products.py
    python benchmarks/products.py --large
    python benchmarks/products.py --device cuda --n 20000

The ways take turns, so that whatever else the machine does falls on all of them:

whole           distances of all pairs by torch.cdist, the Matern-3/2 function of the whole matrix,
                one product: the straightforward implementation
whole_in_place  the same without temporary copies
tiled           KernelOperator, tiles that fit the cache, each pair of rows evaluated once
kept            KernelOperator that keeps H: the product alone

Ratios are of medians. A second line has the memory that one tiled product needs above the data and
libraries, measured in a process of its own. The gemm fields say how far the arithmetic is from
this machine's own large matrix product: distances and products only, without exponentials.
--large measures one tiled product of 100,000 rows and 8 columns with 16 right-hand sides instead.
--probes S S compares tiled products (a target and S probes) and gradients for numbers of probes, in
seconds of processor time, which load on the machine disturbs least.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from functools import partial


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    if args.child:
        report = measure_one(args)
    elif args.probes:
        report = dict(benchmark="probes", **shape(args), **compare_probes(args))
    elif args.large:
        report = dict(benchmark="large", **shape(args), **measured_alone(args))
    else:
        emit(dict(benchmark="products", **shape(args), **compare(args)), argv)
        report = dict(benchmark="memory", **shape(args), **measured_alone(args))
    emit(report, argv, bare=args.child)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, help="rows (default: 8192; with --large 100000)")
    parser.add_argument("--d", type=int, help="columns (default: 26; with --large 8)")
    parser.add_argument("--s", type=int, help="right-hand sides (default: 65; with --large 16)")
    parser.add_argument(
        "--repeats", type=int, default=7, help="rounds after a first one for warmth"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--tile", type=int, help="tile size instead of the package's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true", help="one tiled product of many rows")
    parser.add_argument("--probes", type=int, nargs=2, metavar="S", help="few and many probes")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    for name, usual, large in (("n", 8192, 100_000), ("d", 26, 8), ("s", 65, 16)):
        if getattr(args, name) is None:
            setattr(args, name, large if args.large else usual)
    return args


def shape(args):
    names = ("n", "d", "s", "dtype", "device", "threads", "tile", "seed")
    return {name: getattr(args, name) for name in names}


def setup(args):
    """Rows, right-hand sides, and a function that makes an operator over those rows."""
    import torch

    torch.set_num_threads(args.threads)
    from skscalablegp.kernels import compile_kernel, default_kernel
    from skscalablegp.linalg.operators import KernelOperator

    generator = torch.Generator().manual_seed(args.seed)
    dtype = getattr(torch, args.dtype)
    X = torch.randn(args.n, args.d, generator=generator, dtype=dtype).to(args.device)
    V = torch.randn(args.n, args.s, generator=generator, dtype=dtype).to(args.device)
    kernel = compile_kernel(default_kernel(args.d), args.d)
    theta = kernel.theta0
    theta[1:-1] = 0.5 * torch.log(torch.tensor(float(args.d)))  # typical distances are about 1
    theta[-1] = -3.0
    made = partial(KernelOperator, kernel, theta, tile=args.tile)
    return X, V, theta, lambda rows, keep: made(rows, keep=keep)


def compare(args):
    import torch

    X, V, theta, operator = setup(args)
    scale = (3**0.5 / theta[1:-1].exp()).to(X)
    amplitude, noise = float(theta[0].exp()), float(theta[-1].exp())

    def whole():
        A = X * scale
        r = torch.cdist(A, A)
        K = amplitude * (1 + r) * torch.exp(-r)
        K.diagonal().add_(noise)
        return K @ V

    def whole_in_place():
        A = X * scale
        r = torch.cdist(A, A)
        K = torch.neg(r).exp_().mul_(r.add_(1)).mul_(amplitude)
        del r
        K.diagonal().add_(noise)
        return K @ V

    tiled, kept = operator(X, False), operator(X, True)
    start = time.perf_counter()
    kept.matmul(V[:, :1])
    synchronize(args.device)
    fill_seconds = time.perf_counter() - start
    ways = {
        "whole": whole,
        "whole_in_place": whole_in_place,
        "tiled": lambda: tiled.matmul(V),
        "kept": lambda: kept.matmul(V),
    }
    answers = {name: way() for name, way in ways.items()}
    top = float(answers["kept"].abs().max())
    seconds = {name: [] for name in ways}
    for _ in range(args.repeats):
        for name, way in ways.items():
            seconds[name].append(timed(way, args.device))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    peak = gemm_gflops(args)
    # 2 n^2 (d + 2) / 2 for the distances of half the pairs, 2 n^2 s for the product.
    flops = args.n**2 * (args.d + 2) + 2 * args.n**2 * args.s
    return dict(
        repeats=args.repeats,
        seconds={name: round(value, 4) for name, value in median.items()},
        seconds_all={name: [round(v, 4) for v in values] for name, values in seconds.items()},
        tiled_faster_than_whole=round(median["whole"] / median["tiled"], 2),
        tiled_faster_than_whole_in_place=round(median["whole_in_place"] / median["tiled"], 2),
        kept_faster_than_tiled=round(median["tiled"] / median["kept"], 2),
        kept_fill_seconds=round(fill_seconds, 4),
        largest_difference={
            name: float((answer - answers["kept"]).abs().max()) / top
            for name, answer in answers.items()
        },
        gemm_gflops=round(peak, 1),
        tiled_gflops=round(flops / median["tiled"] / 1e9, 1),
        tiled_fraction_of_gemm=round(flops / median["tiled"] / 1e9 / peak, 3),
        kept_gflops=round(2 * args.n**2 * args.s / median["kept"] / 1e9, 1),
        kept_gbytes_per_second=round(args.n**2 * X.element_size() / median["kept"] / 1e9, 1),
    )


def compare_probes(args):
    import torch

    X, _, _, operator = setup(args)
    tiled = operator(X, False)
    few, many = sorted(args.probes)
    V = {s: torch.randn(args.n, s + 1).to(X) for s in (few, many)}
    seconds = {kind: {few: [], many: []} for kind in ("product", "gradient")}
    for turn in range(args.repeats + 1):
        for s in (few, many):
            for kind, work in (
                ("product", lambda s=s: tiled.matmul(V[s])),
                ("gradient", lambda s=s: tiled.bilinear_grad(V[s], V[s])),
            ):
                synchronize(args.device)
                start = time.process_time()
                work()
                synchronize(args.device)
                if turn:  # the first one warms up
                    seconds[kind][s].append(time.process_time() - start)
    median = {k: {s: statistics.median(v) for s, v in by.items()} for k, by in seconds.items()}
    return dict(
        repeats=args.repeats,
        cpu_seconds={k: {s: round(v, 4) for s, v in by.items()} for k, by in median.items()},
        many_over_few={k: round(by[many] / by[few], 2) for k, by in median.items()},
        many_over_few_of_fastest={
            k: round(min(by[many]) / min(by[few]), 2) for k, by in seconds.items()
        },
    )


def gemm_gflops(args, size=2048):
    """The rate of one large product of square matrices, the best of a few."""
    import torch

    A = torch.randn(size, size, dtype=getattr(torch, args.dtype), device=args.device)
    A @ A
    best = min(timed(lambda: A @ A, args.device) for _ in range(5))
    return 2 * size**3 / best / 1e9


def measured_alone(args):
    """`measure_one` in a fresh process, where no earlier work has raised the peak."""
    options = [f"--{name}={value}" for name, value in shape(args).items() if value is not None]
    command = [sys.executable, os.path.abspath(__file__), "--child", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure_one(args):
    """One tiled product: seconds, and the peak above what data and libraries take."""
    import torch

    X, V, _, operator = setup(args)
    operator(X[:64], False).matmul(V[:64])  # libraries allocate at their first call
    synchronize(args.device)
    on_gpu = torch.device(args.device).type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before, reset = resident_bytes(), reset_peak()
    start = time.perf_counter()
    operator(X, False).matmul(V)
    synchronize(args.device)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak_bytes()
    data = (X.numel() + V.numel()) * X.element_size()
    return dict(
        seconds_one_product=round(seconds, 3),
        peak_mb=round(peak / 2**20, 1),
        peak_above_data_mb=round((peak - before) / 2**20, 1),
        # Where the kernel cannot forget the peak of the imports, the number is an upper bound.
        peak_is_exact=on_gpu or reset,
        data_mb=round(data / 2**20, 1),
        kernel_entries_per_second=round(args.n**2 / seconds / 1e9, 3),
    )


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak():
    """Start the peak of resident memory anew; Linux only."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return False
    return True


def peak_bytes():
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(function, device):
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device):
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def emit(report, argv, bare=False):
    if not bare:
        words = sys.argv[1:] if argv is None else argv
        report |= dict(
            machine=dict(cores=os.cpu_count(), load=[round(x, 2) for x in os.getloadavg()]),
            versions=versions(),
            command=shlex.join(["python", "benchmarks/products.py", *words]),
        )
    print(json.dumps(report, allow_nan=False), flush=True)


def versions():
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("skscalablegp", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


if __name__ == "__main__":
    main()
