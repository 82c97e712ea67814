"""``AlpsForecaster``: what ``alps-ppl fit`` does with a table, as a forecaster of sktime's."""

import pickle
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl import checks
from alps_ppl.app.compose import gibbs_settings
from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.gibbs.pivots import rounded_up
from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import Covariance, period_of
from alps_ppl.results.inclusion import inclusion_table
from alps_ppl.results.prediction import predictive, summarise
from alps_ppl.tables.composing import Latent, composed
from alps_ppl.tables.data import Data
from alps_ppl.tables.grammar import Parsed
from alps_ppl.tables.growth import logarithms
from alps_ppl.tables.spikes import spikes, without_spikes
from alps_ppl.vb.fit import fit_vb

try:
    from sklearn.utils import check_random_state
    from sktime.forecasting.base import BaseForecaster
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'alps_ppl.sktime needs sktime: pip install "alps-ppl[sktime]" ({error})', name=error.name
    ) from None

ENGINES = ("gibbs", "vb")
# So many times are predicted at least.
SHORTEST = 16


class AlpsForecaster(BaseForecaster):
    """Forecasts of one or several series by GP-ALPS, with the probability that each process is behind them.

    The model is that of ``alps-ppl fit``: outputs are standardised, a cycle has an amplitude and a phase in every
    output, and every output a short memory of its own. Cells may be missing. Times are those of the index: numbers,
    dates or periods, evenly spaced or not.

    Parameters
    ----------
    latents
        What to look for: "auto", which proposes cycles, a trend and memories; or a dict of names and covariances, in
        the command's grammar, such as {"daily": "linear_periodic(24h)"}, or tinygp's in the unit of the inputs.
    engine
        "gibbs", the sampler; or "vb", coordinate ascent, which takes a second for cycles, trends and smooth
        processes, and approximates.
    num_warmup, num_samples, num_chains
        Of the sampler. None: what ``alps-ppl fit`` takes for a table of this size.
    noise
        "learnt"; "student", with heavy tails, for "gibbs" alone; or a variance in squared training sds of an output.
    log
        Outputs to model by their logarithm: "auto" finds those whose swings grow with their level, or "none", or
        names with commas between them.
    drop_spikes
        Whether cells that stand far out of their neighbours are taken for missing ones. None: they are, unless noise is
        "student".
    time_unit
        The unit of times that are plain numbers, such as "years"; without one a duration is an error for them.
    random_state
        A whole number, which makes results reproducible, a NumPy RandomState, or None.

    After ``fit``, ``inclusion_`` has a row per process (``alps_ppl.inclusion_table``), ``fit_`` the engine's fit of the
    standardised outputs, and ``data_`` the ``Data``, which converts between these and the table.

    Predictions are of the outputs, white noise included, given all that was fitted: those in the sample, too.
    ``predict`` gives the predictive mean; quantiles and intervals are those of the mixture over all draws. sktime's
    ``predict_proba`` is a normal of the same mean and variance. ``update`` fits again, to all the data.

    Examples
    --------
    >>> from alps_ppl.sktime import AlpsForecaster
    >>> from sktime.datasets import load_airline
    >>> forecaster = AlpsForecaster({"year": "linear_periodic(1y)", "trend": "linear()"}, engine="vb")
    >>> forecaster = forecaster.fit(load_airline(), fh=[1, 2, 3])
    >>> bands = forecaster.predict_interval(coverage=0.9)
    >>> forecaster.inclusion_.set_index("latent").probability.round(1).to_dict()
    {'year': 1.0, 'trend': 1.0}
    """

    _tags = {  # noqa: RUF012
        "authors": "The alps_ppl maintainers",
        "maintainers": "The alps_ppl maintainers",
        "capability:multivariate": True,
        "capability:exogenous": False,
        "capability:insample": True,
        "capability:pred_int": True,
        "capability:pred_int:insample": True,
        "capability:missing_values": True,
        "capability:update": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "requires-fh-in-fit": False,
        "y_inner_mtype": "pd.DataFrame",
    }
    _config = {"remember_data": False}  # noqa: RUF012  # the table that was fitted is here

    def __init__(
        self,
        latents: str | Mapping[str, str | Covariance] = "auto",
        engine: str = "gibbs",
        num_warmup: int | None = None,
        num_samples: int | None = None,
        num_chains: int | None = None,
        noise: str | float = "learnt",
        log: str = "auto",
        drop_spikes: bool | None = None,
        time_unit: str | None = None,
        random_state: Any = 0,
    ):
        self.latents = latents
        self.engine = engine
        self.num_warmup = num_warmup
        self.num_samples = num_samples
        self.num_chains = num_chains
        self.noise = noise
        self.log = log
        self.drop_spikes = drop_spikes
        self.time_unit = time_unit
        self.random_state = random_state
        super().__init__()
        self._y = self._X = None  # which set_config(remember_data=True) fills

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small settings for sktime's checks, which fit some hundred times."""
        return [
            {"latents": {"wave": "linear_periodic(5)"}, "engine": "vb", "time_unit": "days"},
            {
                "latents": {"wave": "linear_periodic(5)", "trend": "linear()"},
                "num_warmup": 5,
                "num_samples": 10,
                "num_chains": 1,
                "noise": 0.3,
                "log": "none",
            },
        ]

    def __getstate__(self) -> dict[str, Any]:
        # Arrays of 64 bits that JAX unpickles outside its 64-bit mode have 32.
        state = dict(super().__getstate__())
        return state | {"fit_": pickle.dumps(state["fit_"])} if "fit_" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "fit_" in state:
            with jax.enable_x64(True):
                self.fit_ = pickle.loads(state["fit_"])

    def _fit(self, y: pd.DataFrame, X: Any = None, fh: Any = None) -> "AlpsForecaster":
        if self.engine not in ENGINES:
            raise ValueError(f"engine: expected one of {ENGINES}, got {self.engine!r}")
        self._table = y
        table = y.set_axis([str(name) for name in y.columns], axis=1)
        drop_spikes = self.noise != "student" if self.drop_spikes is None else self.drop_spikes
        if drop_spikes:
            table = without_spikes(table, spikes(table))
        data = Data(table.index, table)
        if len(data.train_inputs) < 2:
            raise ValueError("y: expected at least two times with a cell; no process shows in one")
        if by_logarithm := logarithms(self.log, data):
            data = Data(table.index, table, log=by_logarithm)
        model = composed(data, _latents(self.latents), data.input_unit or self.time_unit, noise=str(self.noise)).model
        self.data_ = data
        with jax.enable_x64(True):
            self.fit_ = self._fitted(model, data)
        return self

    @property
    def inclusion_(self) -> pd.DataFrame:
        """A row per process, ``alps_ppl.inclusion_table``'s."""
        self.check_is_fitted()
        return inclusion_table({self.engine: self.fit_})

    def _fitted(self, model: ALPS, data: Data) -> Any:
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        rows: dict[str, Any] = {"rng_key": jax.random.key(seed), "progress_bar": False}
        if self.engine == "vb":
            return fit_vb(model, data.train_inputs, data.train_y, **rows)
        lengths = {name: getattr(self, name) for name in ("num_warmup", "num_samples", "num_chains")}
        settings = gibbs_settings(data, has_memory=model.private_memory is not None)
        settings |= {name: value for name, value in lengths.items() if value is not None}
        return fit_gibbs(model, data.train_inputs, data.train_y, **rows, **settings)

    def _update(self, y: pd.DataFrame, X: Any = None, update_params: bool = True) -> "AlpsForecaster":
        return self._fit(y.combine_first(self._table)[self._table.columns]) if update_params else self

    def _predicted(self, fh: Any, intervals: list[float]) -> tuple[pd.Index, list[xr.Dataset]]:
        """The times of ``fh``, and a ``predict`` result in the table's units for each interval's probability."""
        index = fh.to_absolute_index(self.cutoff)
        times = self.data_.conversion.to_inputs(index)
        # Horizons of nearly equal lengths share a program: the last time is repeated.
        more = rounded_up(max(len(times), SHORTEST)) - len(times)
        with jax.enable_x64(True):
            draws = predictive(self.fit_, np.pad(times, (0, more), "edge"))
            found = [self.data_.to_units(summarise(draws, interval=interval)) for interval in intervals]
        return index, [each.isel(time=slice(len(times))) for each in found]

    def _moment(self, fh: Any, name: str) -> pd.DataFrame:
        index, (found,) = self._predicted(fh, [0.9])
        return pd.DataFrame(found[name].to_numpy(), index, self._table.columns)

    def _predict(self, fh: Any, X: Any = None) -> pd.DataFrame:
        return self._moment(fh, "mean")

    def _predict_var(self, fh: Any, X: Any = None, cov: bool = False) -> pd.DataFrame:
        if cov:
            raise NotImplementedError("cov: the variances of single cells are known, not their covariances")
        return self._moment(fh, "sd") ** 2

    def _predict_quantiles(self, fh: Any, X: Any, alpha: list[float]) -> pd.DataFrame:
        # A quantile is an end of a central interval.
        index, found = self._predicted(fh, [abs(2 * level - 1) for level in alpha])
        ends = ["lower" if level < 0.5 else "upper" for level in alpha]
        values = np.stack([each[end].to_numpy() for each, end in zip(found, ends, strict=True)], -1)
        columns = pd.MultiIndex.from_product([self._get_varnames(), alpha])
        return pd.DataFrame(values.reshape(len(index), -1), index, columns)


def _latents(latents: Any) -> list[str | Latent]:
    """``composed``'s latents of a forecaster's."""
    if isinstance(latents, str):
        return [latents]
    if not isinstance(latents, Mapping) or not latents:
        raise TypeError(f"latents: expected 'auto', or a dict of names and covariances, got {checks.short(latents)}")
    found: list[str | Latent] = []
    for name, covariance in latents.items():
        if isinstance(covariance, str):
            found.append(f"{name} = {covariance}")
            continue
        checks.instance(f"latents[{name!r}]", covariance, Covariance, "a covariance as text, or one of tinygp's")
        period = period_of(covariance)
        parsed = Parsed(covariance, repr(covariance), () if period is None else (float(period),))
        found.append(Latent(str(name), repr(covariance), "", parsed))
    return found
