"""Rows in fixed blocks on a thread pool: the one way in which auxbit is parallel. Guards, samples, kernels.

Blocks do not depend on the number of threads, each block runs with BLAS on one thread, and sums are
added in the order of the blocks, in float64. So results are the same to the last bit for any `n_jobs`.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import count, islice
from types import ModuleType
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from auxbit.errors import InvalidInput, InvalidParameter

BLOCK_ROWS = 4096
SAMPLED_ROWS = 4096  # that stand for all, by default
SHUFFLED_ROWS = 2**24  # RandomState draws by shuffling all numbers: 8 bytes each
SEED = 0  # of samples alone: what a fit draws, and so its result, does not depend on them

T = TypeVar("T")

logger = logging.getLogger("auxbit")


def block_slices(n_rows: int, block_rows: int = BLOCK_ROWS) -> Iterator[slice]:
    """The fixed blocks of `n_rows` rows."""
    for start in range(0, n_rows, block_rows):
        yield slice(start, min(start + block_rows, n_rows))


def resolve_n_jobs(n_jobs: int | None) -> int:
    """None: every core this process may use; -1 the same, -2 all but one; otherwise the number itself."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if n_jobs is None:
        return available
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer)) or n_jobs == 0:
        raise InvalidParameter("n_jobs", n_jobs, "None, a positive integer, or -1 for all cores")
    return int(n_jobs) if n_jobs > 0 else max(1, available + 1 + int(n_jobs))


class Workers:
    """A pool of threads, each with single-threaded BLAS, for the length of a `with` block.

    Work that calls no BLAS can do without the limits (`blas=False`), which take longer than a small search.
    """

    def __init__(self, n_jobs: int | None = None, *, blas: bool = True) -> None:
        self.n_jobs, self._blas = resolve_n_jobs(n_jobs), blas

    def __enter__(self) -> Self:
        others = self.n_jobs - 1
        if self._blas:
            self._thread_limit = _limit_thread()
            _limit_process()
        begin = _limit_thread if self._blas else None
        self._pool = ThreadPoolExecutor(others, initializer=begin) if others else None
        return self

    def __exit__(self, *raised: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._blas:
            _release_process()
            self._thread_limit.restore_original_limits()

    def map(self, function: Callable[[slice], T], n_rows: int, block_rows: int = BLOCK_ROWS) -> Iterator[T]:
        """Yield `function(block)` for each block of rows, in order; few results wait at a time."""
        blocks = block_slices(n_rows, block_rows)
        if self._pool is None or n_rows <= block_rows:
            yield from map(function, blocks)
            return
        while some := list(islice(blocks, 4 * self.n_jobs)):
            yield from self._at_once(function, some, self._pool)

    def _at_once(
        self, function: Callable[[slice], T], blocks: list[slice], pool: ThreadPoolExecutor
    ) -> list[T]:
        """The results for these blocks: every thread, this one too, takes the next block when it is free.

        One task per thread, not one per block: short passes would take longer to hand over than to do.
        """
        results: list[Any] = [None] * len(blocks)
        failures: list[tuple[int, BaseException]] = []
        take = count().__next__  # atomic

        def work() -> None:
            while not failures and (i := take()) < len(blocks):
                try:
                    results[i] = function(blocks[i])
                except BaseException as error:
                    failures.append((i, error))

        others = [pool.submit(work) for _ in range(min(self.n_jobs, len(blocks)) - 1)]
        try:
            work()
        except BaseException as error:  # an interrupt between two blocks
            failures.append((-1, error))
        wait([other for other in others if not other.cancel()])  # what has not begun has nothing left to do
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]
        return results

    def run(self, function: Callable[[slice], object], n_rows: int, block_rows: int = BLOCK_ROWS) -> None:
        """Call `function` on each block for its effects."""
        for _ in self.map(function, n_rows, block_rows):
            pass

    def sum(
        self, function: Callable[[slice], tuple[Any, ...]], n_rows: int, block_rows: int = BLOCK_ROWS
    ) -> tuple[Any, ...]:
        """Add up the tuples of arrays or numbers that `function` returns, in block order, in float64."""
        totals: list[Any] | None = None
        for terms in self.map(function, n_rows, block_rows):
            if totals is None:
                totals = [np.array(term, dtype=np.float64) for term in terms]
            else:
                for total, term in zip(totals, terms, strict=True):
                    total += term
        if totals is None:
            raise InvalidInput("no rows to sum over")
        return tuple(totals)


_lock = threading.Lock()
_open: list[Any] = []  # an entry for each `with Workers` that is open, in any thread; the first is the limit


def _limit_process() -> None:
    """Limit the BLAS libraries that have one pool a process, until the last open `Workers` ends."""
    with unforked, _lock:
        _open.append(None if _open else _controllers(len(sys.modules))[1].limit(limits=1))
        _share_control()


def _release_process() -> None:
    with unforked, _lock:
        limit = _open[0]
        _open.pop()
        if not _open:
            limit.restore_original_limits()
            _share_control()


def _share_control() -> None:
    """Let other threads set limits: threadpoolctl 3.8 ignores all but the first until a block of its ends."""
    with _controllers(len(sys.modules))[1].select(filepath=[]).limit():
        pass


def _limit_thread() -> Any:
    """Limit OpenMP and BLAS libraries built on it: they keep their number of threads by calling thread."""
    return _controllers(len(sys.modules))[0].limit(limits=1)


@lru_cache(maxsize=1)
def _controllers(n_modules: int) -> tuple[ThreadpoolController, ThreadpoolController]:
    """The libraries with one limit a thread, and those with one a process; looked up after new imports."""
    import scipy.linalg  # noqa: F401  the controller sees only BLAS libraries that are loaded

    found = ThreadpoolController()
    by_thread = found.select(internal_api="openmp", threading_layer="openmp")
    theirs = {library["filepath"] for library in by_thread.info()}
    rest = [library["filepath"] for library in found.info() if library["filepath"] not in theirs]
    return by_thread, found.select(filepath=rest)


# ---- Searches side by side, changes alone, and no fork in the midst of them

FORK_SECONDS = 30.0  # that a fork waits; what takes longer, as a retraining, may leave the child without


class Unforked:
    """Sections that a fork waits for: its child has one thread, and what others had locked would stay so.

    That holds for our locks and for those inside SQLite. Sections of one thread may lie within each other.
    """

    def __init__(self) -> None:
        # used by itself: an interrupt while a Condition takes its lock leaves it locked
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._depths: dict[int, int] = {}  # by thread; only its own thread changes an entry
        self._forking = 0
        self.hook()

    def hook(self) -> None:
        """Let forks wait for sections, before they wait for anything that was imported until now."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._wait, after_in_parent=self._forked, after_in_child=self._forked_here
            )

    def __enter__(self) -> None:  # without the lock if nothing forks: every search passes here
        me = threading.get_ident()
        self._depths[me] = self._depths.get(me, 0) + 1  # before the look: who forks says so and then looks
        if self._forking and self._depths[me] == 1:
            try:
                self._wait_for_forks(me)
            except BaseException:  # an interrupt
                self._depths.pop(me, None)
                raise

    def _wait_for_forks(self, me: int) -> None:
        with self._lock:
            del self._depths[me]
            self._changed.notify_all()
            while self._forking:
                self._changed.wait()
            self._depths[me] = 1

    def __exit__(self, *error: object) -> None:
        me = threading.get_ident()
        if self._depths[me] > 1:
            self._depths[me] -= 1
            return
        del self._depths[me]
        if self._forking:
            with self._lock:
                self._changed.notify_all()

    def _wait(self) -> None:
        me = threading.get_ident()
        with self._lock:
            self._forking += 1
            self._changed.wait_for(lambda: {me}.issuperset(list(self._depths)), timeout=FORK_SECONDS)

    def _forked(self) -> None:
        with self._lock:
            self._forking -= 1
            self._changed.notify_all()

    def _forked_here(self) -> None:
        me = threading.get_ident()
        self._lock, self._forking = threading.Lock(), 0
        self._changed = threading.Condition(self._lock)
        self._depths = {me: self._depths[me]} if me in self._depths else {}


unforked = Unforked()


class Guard:
    """Many may read at a time, one may write, and then nobody reads. Writers who wait go first.

    A thread does not wait for itself: after an interrupt it may seem to read or write, and do neither.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # used by itself, as in Unforked
        self._changed = threading.Condition(self._lock)
        self._readers: dict[int, int] = {}  # by thread, how often
        self._writer: int | None = None
        self._writers_waiting = 0

    def reading(self) -> Guard:
        """Wait until nobody writes or waits to; keep writers out for the length of the block."""
        return self

    def __enter__(self) -> None:  # by hand, and without the lock if nobody writes: every search passes here
        me, mine = threading.get_ident(), False
        unforked.__enter__()
        try:
            # before the look at writers, and those who wait first: they say so, and look at readers then
            self._readers[me], mine = self._readers.get(me, 0) + 1, True
            if (self._writers_waiting or self._writer is not None) and self._readers[me] == 1:
                self._wait_for_writers(me)
        except BaseException:  # an interrupt
            self._leave(me, mine)
            raise

    def _wait_for_writers(self, me: int) -> None:
        with self._lock:
            del self._readers[me]
            self._changed.notify_all()
            try:
                while self._writer != me and (self._writer is not None or self._writers_waiting):
                    self._changed.wait()
            finally:
                self._readers[me] = 1

    def __exit__(self, *error: object) -> None:
        self._leave(threading.get_ident(), True)

    def _leave(self, me: int, mine: bool) -> None:
        if mine and self._readers[me] > 1:
            self._readers[me] -= 1
        elif mine:
            del self._readers[me]
            if self._writers_waiting:
                with self._lock:
                    self._changed.notify_all()
        unforked.__exit__()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wait until nobody else reads or writes; keep all others out for the length of the block."""
        me, mine = threading.get_ident(), False
        with unforked:
            try:
                with self._lock:
                    self._writers_waiting += 1
                    try:
                        while self._writer not in (None, me) or set(self._readers) - {me}:
                            self._changed.wait()
                        self._writer, mine = me, True
                    finally:
                        self._writers_waiting -= 1
                yield
            finally:
                with self._lock:
                    if mine:
                        self._writer = None
                    self._changed.notify_all()


# ---- Samples of rows


def sample_rows(n_rows: int, at_most: int = SAMPLED_ROWS) -> npt.NDArray[np.intp]:
    """Which rows stand for n_rows of them: all, or at_most drawn at random, in rising order.

    The same for the same number.
    """
    if n_rows <= at_most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(SEED).choice(n_rows, at_most, replace=False)).astype(np.intp)


def some_rows(X: Any, rng: np.random.RandomState, at_most: int) -> Any:
    """At most that many rows of an array, drawn without replacement, in their order."""
    if len(X) <= at_most:
        return X
    return X[np.sort(rng.choice(len(X), at_most, replace=False))]


def draw_rows(n_rows: int, n: int, rng: np.random.RandomState) -> npt.NDArray[np.intp]:
    """Numbers of n of n_rows rows, drawn at random, in rising order."""
    if n_rows > SHUFFLED_ROWS:
        chosen = np.random.default_rng(rng.randint(np.iinfo(np.int32).max)).choice(n_rows, n, replace=False)
    else:
        chosen = rng.choice(n_rows, n, replace=False)
    return np.sort(chosen).astype(np.intp)


# ---- Compiled kernels: numba without the GIL, cached on disk, run on the thread pool

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile with njit(nogil=True, cache=True), keeping the types for mypy."""
    return _compiled(function)


def reordering_kernel(function: F) -> F:
    """A kernel whose sums may be reordered and fused, so that they vectorise; NaN and ∞ are kept."""
    return _compiled(function, fastmath={"reassoc", "contract", "nsz"})


class LateKernel:
    """A kernel that imports numba, and takes its own place in its module, when it is first used.

    For modules that are imported by what calls no kernel: numba takes a second to import, and 60 MB.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def compiled(self) -> Any:
        """The kernel, which other kernels can call, too."""
        made = vars(self).setdefault("_made", kernel(self.function))
        module, name = self.function.__globals__, self.function.__name__
        if module.get(name) is self:
            module[name] = made
        return made

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled()(*arguments)


def late_kernel(function: F) -> F:
    """A LateKernel, keeping the types for mypy."""
    return cast(F, LateKernel(function))


@lru_cache(maxsize=1)
def _numba() -> ModuleType:
    import numba
    from numba.extending import typeof_impl

    @typeof_impl.register(LateKernel)  # as kernels of other modules have it, which imported it before its use
    def known(late: LateKernel, context: Any) -> Any:
        return numba.types.Dispatcher(late.compiled())

    return numba


def _compiled(function: F, **options: Any) -> F:
    numba = _numba()

    config: Any = numba.config

    def compiled(*, cache: bool) -> F:
        compiler: Any = numba.njit(nogil=True, cache=cache, **options)
        made: F = compiler(function)
        return made

    try:
        return compiled(cache=True)
    except RuntimeError:  # neither beside the package nor in the user's cache can files be written
        pass
    with unforked, _lock:
        before, config.CACHE_DIR = config.CACHE_DIR, _spare_cache()
        try:
            return compiled(cache=bool(config.CACHE_DIR))
        except RuntimeError:
            return compiled(cache=False)
        finally:
            config.CACHE_DIR = before


@lru_cache(maxsize=1)
def _spare_cache() -> str:
    """A temporary folder for compiled kernels that nobody else can write to, or ""; the log says so once.

    Nobody else, because numba unpickles what it finds there, and that can run any code.
    """
    cannot = "compiled kernels cannot be kept in the folder of the package, nor in the user's cache"
    remedy = "Set NUMBA_CACHE_DIR to a folder that can be written to"
    try:
        folder = _private_folder()
    except OSError:
        logger.warning("%s, nor in a temporary folder: every process compiles its own. %s.", cannot, remedy)
        return ""
    logger.warning("%s: they are kept in %s. %s.", cannot, folder, remedy)
    return folder


def _private_folder() -> str:
    """The folder of this user among temporary files; if it is not private, a new one for this process."""
    parent = tempfile.gettempdir()
    if os.name == "nt":  # it is the user's own there
        os.makedirs(os.path.join(parent, "auxbit-kernels"), exist_ok=True)
        return os.path.join(parent, "auxbit-kernels")
    user, above = os.geteuid(), os.stat(parent)
    if above.st_uid not in (0, user) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        raise PermissionError(f"others can rename what is in {parent}")
    folder = os.path.join(parent, f"auxbit-kernels-{user}")
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    there = os.lstat(folder)
    if stat.S_ISDIR(there.st_mode) and there.st_uid == user and not there.st_mode & 0o077:
        return folder
    fresh = tempfile.mkdtemp(prefix="auxbit-kernels-")
    atexit.register(shutil.rmtree, fresh, ignore_errors=True)
    return fresh


# ---- Dask arrays, recognised without importing Dask; functions of their blocks of rows, not computed yet


def is_dask_array(X: Any) -> bool:
    """Whether X is a dask array; nobody has one before Dask is imported."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(X, module.Array)


def whole_rows(X: Any) -> Any:
    """The dask array X, (n, D), with no block that ends within a row; nothing is computed."""
    if X.ndim != 2:
        raise InvalidInput(f"X must have rows and columns, (n, D); got a dask array of shape {X.shape}.")
    if X.dtype.kind not in "biuf":
        raise InvalidInput(f"X must be numbers, got a dask array of {X.dtype}.")
    return X if X.numblocks[1] == 1 else X.rechunk({1: -1})


def map_rows(X: Any, function: Callable[[Any], npt.NDArray[Any]], n_features: int, width: int) -> Any:
    """The dask array of function(block), (n, width) uint8, for the blocks of X, (n, n_features): lazy."""
    rows = whole_rows(X)
    if rows.shape[1] != n_features:
        raise InvalidInput(f"X has {rows.shape[1]} features, but the model was fitted to {n_features}.")
    empty = np.empty((0, width), dtype=np.uint8)
    chunks = (rows.chunks[0], (width,))
    not_empty = partial(_if_any, function, empty)
    return rows.map_blocks(not_empty, dtype=empty.dtype, chunks=chunks, meta=empty)


def _if_any(function: Callable[[Any], T], empty: T, block: Any) -> T:
    rows = np.asarray(block)
    return function(rows) if len(rows) else empty
