"""``Problem``: what a run fits, wherever it came from; ``Outcome``: what it found."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from alps_ppl.gibbs.chains import check_settings as check_gibbs
from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.model.alps import ALPS
from alps_ppl.results.inclusion import inclusion_table
from alps_ppl.svi.fit import check_model as check_svi_model
from alps_ppl.svi.fit import check_settings as check_svi
from alps_ppl.svi.fit import fit_svi
from alps_ppl.tables.data import Data
from alps_ppl.vb.fit import check_settings as check_vb
from alps_ppl.vb.fit import fit_vb, why_not

NO_SETTINGS = ("model", "inputs", "y", "rng_key", "progress_bar", "checkpoints", "checkpoint", "init_params")
# The arguments of the fits that a model file's dicts may hold.
SVI_DEFAULTS, VB_DEFAULTS, GIBBS_DEFAULTS = (
    {name: argument.default for name, argument in inspect.signature(fit).parameters.items() if name not in NO_SETTINGS}
    for fit in (fit_svi, fit_vb, fit_gibbs)
)

# A preview's run of the sampler.
SHORT_RUN = {"num_warmup": 100, "num_samples": 100, "num_chains": 2}


@dataclass(frozen=True)
class Problem:
    """Data, a model of them, and the arguments of ``fit_svi``, ``fit_gibbs`` and ``fit_vb``.

    ``name`` is the model file's and ``source`` its text, which stands for settings that are functions in a checkpoint's
    identity. ``baselines`` gives other predictions of every cell to compare scores with, (mean, sd) by name, in the
    file's units and (time, output) each. ``spikes`` are the table's cells that stand out of their
    neighbours, and ``spikes_are_missing`` whether they are taken for missing.
    """

    name: str
    data: Data
    model: ALPS
    svi: dict[str, Any]
    gibbs: dict[str, Any]
    baselines: Callable[[], Mapping[str, Any]] | None = None
    source: str = ""
    spikes: pd.DataFrame | None = None
    spikes_are_missing: bool = False
    vb: dict[str, Any] = field(default_factory=dict)

    def settings(self, engine: str) -> dict[str, Any]:
        """The arguments of ``engine``'s fit."""
        return {"svi": self.svi, "vb": self.vb, "gibbs": self.gibbs}[engine]

    def preview(self, set_by_user: Mapping[str, Any]) -> "tuple[Problem, str, str]":
        """The problem, the engine that answers it in seconds, and what to say of it."""
        reason = why_not(self.model, len(self.data.train_inputs))
        if reason is None:
            return (
                self,
                "vb",
                "A preview by coordinate ascent, an approximation; without --preview the sampler answers.",
            )
        short = replace(self, gibbs={**self.gibbs, **SHORT_RUN, **set_by_user})
        return short, "gibbs", f"A preview by a short run of the sampler: coordinate ascent takes no {reason}."

    def check(self, engines: Sequence[str]) -> None:
        """A ValueError or TypeError for what these engines or the files to write would refuse, before any fit."""
        if list(self.model.outputs) != self.data.outputs:
            raise ValueError(
                f"{self.name}: the model's outputs {list(self.model.outputs)} aren't the data's {self.data.outputs}"
            )
        for name in (*self.model.latents, *self.data.outputs, *self.data.units.values(), self.data.input_label):
            # Else neither a table nor a netCDF file can hold it.
            if name.encode(errors="replace") != name.encode(errors="ignore") or "\0" in name:
                raise ValueError(f"{name!r}: expected a name of characters that UTF-8 has, and without NUL")
        for which, settings, known in (
            ("SVI", self.svi, SVI_DEFAULTS),
            ("VB", self.vb, VB_DEFAULTS),
            ("GIBBS", self.gibbs, GIBBS_DEFAULTS),
        ):
            if unknown := [str(key) for key in settings if key not in known]:
                raise ValueError(f"{which}: unknown setting(s) {', '.join(unknown)}; known are {', '.join(known)}")
        self.model.check(self.data.inputs, np.where(self.data.train, self.data.standardised, np.nan))
        if "svi" in engines:
            settings = SVI_DEFAULTS | self.svi
            check_svi_model(self.model, settings["likelihood"])
            check_svi(len(self.data.train_inputs), **settings)
        if "vb" in engines:
            check_vb(_as_if_learnt(self.model) if "svi" in engines else self.model, **self.vb)
        if "gibbs" in engines:
            check_gibbs(_as_if_learnt(self.model) if "svi" in engines else self.model, **self.gibbs)


@dataclass(frozen=True)
class Fitted:
    """An engine's answer: its fit and tree, the seconds that the fit took, and what it says of every cell of the table.

    ``prediction`` is ``predict``'s and ``log_density`` that of the observed cells, both of standardised outputs.
    """

    fit: Any  # an SVIFit, a VBFit or a GibbsFit
    tree: xr.DataTree
    seconds: float
    prediction: xr.Dataset
    log_density: Float[np.ndarray, "time output"]


@dataclass(frozen=True)
class Outcome:
    """A fitted problem, by engine in the order in which they ran. ``learnt``: SVI's covariance parameters."""

    problem: Problem
    seed: int
    fitted: dict[str, Fitted]
    learnt: dict[str, float]

    @property
    def trees(self) -> dict[str, xr.DataTree]:
        """The posteriors' trees."""
        return {engine: fitted.tree for engine, fitted in self.fitted.items()}

    @property
    def predictions(self) -> dict[str, xr.Dataset]:
        """The predictions of every cell, of standardised outputs."""
        return {engine: fitted.prediction for engine, fitted in self.fitted.items()}

    @property
    def lead(self) -> str:
        """Whose answer counts: the sampler's where there is one."""
        return "gibbs" if "gibbs" in self.fitted else next(iter(self.fitted))

    @cached_property
    def table(self) -> pd.DataFrame:
        """The inclusion table."""
        return inclusion_table(self.trees)


def _as_if_learnt(model: ALPS) -> ALPS:
    """The model with its lower bounds in the place of what SVI will learn, since the sampler learns nothing."""
    bounds = model.covariance_bounds.items()
    return model.with_learnt({f"{name}.{path}": np.log(low) for name, b in bounds for path, (low, _) in b.items()})
