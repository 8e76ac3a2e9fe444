"""All experiments of the paper on one problem: what each needs, and running them one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from auxbit.codes import check_n_bits
from auxbit.errors import InvalidParameter
from auxbit.experiments import altopt, entropy, parallel_figure, path, retrieval, samples, solvers, wrapper
from auxbit.experiments.study import Problem, Result
from auxbit.experiments.trained import Cell, Store

NAMES = ("wrapper", "altopt", "parallel", "retrieval", "samples", "entropy", "path", "solvers")
QUICK_BITS = (8, 16, 32)
ALTOPT_ROWS = 10_000  # to try all values of 16 bits takes minutes for so many, and an hour for CIFAR


@dataclass(frozen=True)
class Settings:
    """What may be chosen; None: as in the paper. quick : less of everything, for a first look."""

    bits: tuple[int, ...] | None = None
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] = retrieval.METHODS
    preset: str | None = None
    groups: tuple[int, ...] = altopt.GROUPS
    quick: bool = False

    def made_quick(self) -> Settings:
        """The same with few bits and groups."""
        return replace(self, bits=self.bits or QUICK_BITS, groups=tuple(g for g in self.groups if g <= 4))


@dataclass(frozen=True)
class Experiment:
    """One experiment on one problem: the fits that it needs, and what runs it with a store of them."""

    name: str
    cells: list[Cell]
    run: Callable[[Store], Result]
    problem: Problem


def planned(problem: Problem, settings: Settings, names: Sequence[str] = NAMES) -> list[Experiment]:
    """The experiments of these names, ready to run."""
    settings = settings.made_quick() if settings.quick else settings
    for n_bits in settings.bits or ():
        check_n_bits(n_bits)
    for name in names:
        if name not in NAMES:
            raise InvalidParameter("experiment", name, f"one of {', '.join(NAMES)}")
    return [_plan(name, problem, settings) for name in names]


def _plan(name: str, problem: Problem, settings: Settings) -> Experiment:
    seeds, methods = settings.seeds, settings.methods
    if name == "wrapper":
        bits = settings.bits or wrapper.BITS
        cells = retrieval.cells(wrapper.METHODS, bits, seeds)
        return Experiment(
            name, cells, lambda store: wrapper.run(problem, store, bits=bits, seeds=seeds), problem
        )
    if name == "altopt":
        L = altopt.BITS if settings.bits is None or altopt.BITS in settings.bits else max(settings.bits)
        fewer = problem.smaller(ALTOPT_ROWS, None)
        cells = [altopt.cell_of(start, g, L, seeds[0]) for start, g, _ in altopt.settings_of(settings.groups)]
        return Experiment(
            name,
            cells,
            lambda store: altopt.run(fewer, store, bits=L, groups=settings.groups, seed=seeds[0]),
            fewer,
        )
    preset = retrieval.preset_of(settings.preset, problem)
    bits = settings.bits or preset.bits
    cells = retrieval.cells(methods, bits, seeds)
    if name == "retrieval":
        return Experiment(
            name,
            cells,
            lambda store: retrieval.run(
                problem, store, preset=preset, methods=methods, bits=bits, seeds=seeds
            ),
            problem,
        )
    if name == "entropy":
        return Experiment(
            name,
            cells,
            lambda store: entropy.run(problem, store, methods=methods, bits=bits, seeds=seeds),
            problem,
        )
    if name == "samples":
        return Experiment(
            name,
            samples.cells(max(bits), seeds[0]),
            lambda store: samples.run(problem, store, bits=max(bits), seed=seeds[0]),
            problem,
        )
    if name == "path":
        shown = settings.bits or tuple(L for L in bits if L in (16, 32))
        return Experiment(
            name,
            [path.cell_of(L, seeds[0]) for L in shown],
            lambda store: path.run(problem, store, bits=shown, seed=seeds[0]),
            problem,
        )
    if name == "parallel":
        return Experiment(name, [], lambda store: parallel_figure.run(problem, store, seed=seeds[0]), problem)
    bits = settings.bits or solvers.BITS
    return Experiment(
        name, solvers.cells(bits), lambda store: solvers.run(problem, store, bits=bits), problem
    )
