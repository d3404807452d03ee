"""Mistakes in what several processes share."""

HELPERS = "linalg/parallel/_helpers.py"
RANKS = "ranks/_ranks.py"
TESTS = "tests/ranks/test_helpers.py"
MEMBERS = "tests/meta/test_members_in_jobs.py"
OF_RANKS = "tests/ranks/test_ranks.py"
ORDERS = "tests/core/test_orders.py"
OWN = "tests/ranks/test_own_rows.py -k several_ranks_is"

MUTANTS = [
    (
        "each rank weighs its rows as if they were the whole batch",
        "models/sampled/_batch.py",
        "n = task.n * len(own) / task.size",
        "n = task.n",
        f"{OWN} -k sampled",
        True,
    ),
    (
        "a rank gets the gradients of other ranks' features",
        "ranks/_parts.py",
        "tensor[held.to(tensor.device)] for",
        "tensor[: int(held.sum())] for",
        f"{OWN} -k deep",
        True,
    ),
    (
        "rows that are fetched by number come in the order of the ranks",
        "core/data/_row_work.py",
        "np.concatenate(arrays)[order] for",
        "np.concatenate(arrays) for",
        f"{OWN} -k 'deep or sampled'",
        True,
    ),
    (
        "some of a rank's rows lose their known noise",
        "core/_own_rows.py",
        "None if self.noise_variance is None else self.noise_variance[rows]",
        "None if self.noise_variance is None else 0 * self.noise_variance[rows]",
        f"{OWN} -k deep",
        True,
    ),
    (
        "classes are those of rank 1 alone",
        "core/_own_source.py",
        "np.unique(np.concatenate(some))",
        "some[1]",
        "tests/ranks/test_own_batches.py -k classes_of_one_model",
        True,
    ),
    (
        "the exact term of a series has the rows of no rank",
        "models/fourier/_single_sample.py",
        "        problem = problem.whole()\n",
        "",
        "tests/ranks/test_own_rows.py -k several_ranks_is",
    ),
    (
        "experts are predicted by rank 0 alone",
        "models/experts/_posterior.py",
        'self._helpers = Helpers(1, wanted=first.device.type == "cpu")',
        "self._helpers = Helpers(1, wanted=False)",
        f"{TESTS} -k ranks_fit_as_one_process",
        True,
    ),
    (
        "members in jobs do not wait for the kernel from which they start",
        "meta/_auto_base.py",
        "if not each[0].waits]",
        "if True]",
        f"{MEMBERS} -k those_of_this_process",
        True,
    ),
    (
        "members in jobs choose the columns with normal scores each for themselves",
        "meta/_auto_jobs.py",
        "            auto._find_scores(fresh, rows, run)\n",
        "",
        f"{MEMBERS} -k those_of_this_process",
        True,
    ),
    (
        "warnings and steps of members in jobs are lost",
        "meta/_jobs.py",
        "        run.takes(self.record)\n",
        "",
        f"{MEMBERS} -k those_of_this_process",
    ),
    (
        "jobs make fits that a time limit or a callback looks at",
        "meta/_jobs.py",
        "    if any(each is not None for each in watched):\n        if outer",
        "    if False:\n        if outer",
        f"{MEMBERS} -k stay_in_this_process",
    ),
    (
        "a slice of rows travels with all rows",
        HELPERS,
        "a[some].clone() for a in rows",
        "a[some] for a in rows",
        f"{TESTS} -k receive_an_object_once",
    ),
    (
        "arrays that are known are sent again",
        HELPERS,
        "if k not in _SENT}",
        "if True}",
        f"{TESTS} -k processes_receive",
    ),
    (
        "a process that lacks the object ends the work",
        HELPERS,
        "        yield self._packed\n",
        "",
        f"{TESTS} -k processes_receive",
    ),
    (
        "equal tensors are sent to ranks again",
        RANKS,
        "found = self._held.get(digest)",
        "found = None",
        f"{TESTS} -k ranks_receive",
    ),
    (
        "an error of one rank is an answer",
        HELPERS,
        "            if isinstance(answer, _Failed):",
        "            if False:",
        f"{TESTS} -k ranks_receive",
    ),
    (
        "parts of the rows count the prior of the weights each",
        "models/neighbors/_full_scale.py",
        "precision=found.precision - _identity(found.precision)",
        "precision=found.precision",
        f"{TESTS} -k threads",
    ),
    (
        "another process finds added rows only",
        "models/neighbors/_posterior.py",
        "self._index = Index(points[:in_tree]).plus(points[in_tree:])",
        "self._index = Index(points[in_tree:])",
        f"{TESTS} -k added",
    ),
    (
        "ranks wait for one that makes no call without an end",
        "ranks/_life.py",
        "waited > self._patience",
        "False",
        f"{OF_RANKS} -k patience",
    ),
    (
        "numbers of no row are rows of a long order",
        "core/data/_subsets.py",
        "outside = found >= self.n",
        "outside = found < 0",
        f"{ORDERS} -k once",
    ),
    (
        "a round forgets one half of the bits",
        "core/data/_subsets.py",
        "left, right = right, left ^ ((mixed >> 32) & mask)",
        "left, right = right, (mixed >> 32) & mask",
        f"{ORDERS} -k once",
    ),
]
