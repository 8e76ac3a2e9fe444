"""A script in the place of data: what the loop of MAC asks for, and paths to follow."""

from __future__ import annotations

from auxbit.mac.loop import Step, ZReport


def report(mismatched=1, E_Q=8.0, E_BA=9.0):
    return ZReport(E_Q, E_BA, 2, mismatched, 3, 4, 5, 6, 7)


class Script:
    """Data that only notes what is asked of it; Z = h(X) after the Z step number `matches_at`."""

    def __init__(self, matches_at=None):
        self.calls, self.matches_at, self.n_z = [], matches_at, 0

    def h_step(self, h):
        self.calls.append(("h", h))
        return f"h{sum(name == 'h' for name, _ in self.calls)}"

    def f_step(self):
        self.calls.append(("f", None))
        return "f"

    def z_step(self, h, f, mu):
        self.n_z += 1
        self.calls.append(("z", (h, f, mu)))
        return report(mismatched=0 if self.n_z == self.matches_at else 1)


def path(mus, mismatched=()):
    """Steps along μ, each with the encoder named by its place."""
    mus = list(mus)
    for i, mu in enumerate(mus):
        ends_mu = mus[i + 1 : i + 2] != [mu]
        yield Step(mu, i, None, report(0 if i in mismatched else 1), (0.1, 0.2, 0.3), ends_mu)
