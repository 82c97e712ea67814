"""How large a cycle is in each output, and when it peaks there."""

import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl import checks
from alps_ppl.results.trees import Trees, as_trees, processes

COLUMNS = ["engine", "process", "output", "period", "amplitude", "amplitude_lower", "amplitude_upper"]
COLUMNS += ["peak", "peak_lower", "peak_upper"]


def cycles(trees: Trees, *, interval: float = 0.9) -> pd.DataFrame:
    """Amplitude and time of the peak of every linear-periodic process in every output, over the draws that have it on.

    In a draw, a process of period T is sum_j H_ij x_j(t) = A cos(2 pi t / T) + B sin(2 pi t / T) in output i, however
    its copies are turned: its amplitude is sqrt(A^2 + B^2), in the unit of the fitted outputs, and its peaks are at
    atan2(B, A) T / 2 pi and every T from there. ``peak`` is the first one from the first input on, the mean over draws
    on the circle; ``peak_lower`` and ``peak_upper`` are the central ``interval`` around it, at most half a period away.
    Where the period is unknown, it is that of the draw, and ``period`` the median.
    With one copy all outputs peak together, or half a period apart.

    ``trees`` are fits or ``to_datatree``'s trees by the engine's name, or one of them. A process that no draw has on
    has no row.
    """
    checks.in_range("interval", interval, 0.0, 1.0, ends=False)
    tails = [0.5 - interval / 2, 0.5 + interval / 2]
    rows = []
    for engine, tree in as_trees(trees, groups=("posterior", "constant_data"), needs="x").items():
        posterior, constant = tree["posterior"].to_dataset(), tree["constant_data"].to_dataset()
        if "period" not in constant or "inputs" in constant:
            continue  # an older file, or inputs of several columns
        period = constant["period"].values
        t = posterior["time"].values.astype(float)
        start, t = float(t.min()), t - t.min()  # far from zero a period's uncertainty would scramble the phase
        sites = [str(site) for site in constant.get("scale_site", xr.DataArray([])).values if site]
        draws = posterior[["x", "H", "b", *dict.fromkeys(sites)]].stack(sample=("chain", "draw"))
        for name, places in processes(tree).items():
            here = draws.isel(latent=places)
            on = here["b"].isel(latent=0).values == 1
            if np.isnan(period[places]).any() or len(set(period[places])) > 1 or not on.any():
                continue
            x = here["x"].transpose("sample", "time", "latent").values[on]
            of_draw = _periods(constant, places[0], draws, on)
            of_x = np.empty((len(x), 2, len(places)))
            for T in np.unique(of_draw):
                circle = np.stack([np.cos(2 * np.pi * t / T), np.sin(2 * np.pi * t / T)], 1)
                of_x[of_draw == T] = np.linalg.pinv(circle) @ x[of_draw == T]  # (sample, 2, latent)
            T = float(np.median(of_draw))
            A, B = np.einsum("sij,skj->ksi", here["H"].transpose("sample", "output", "latent").values[on], of_x)
            for i, output in enumerate(posterior["output"].values):
                rows.append(
                    {"engine": engine, "process": name, "output": str(output), "period": T}
                    | _amplitude_and_peak(A[:, i], B[:, i], of_draw, start, tails)
                )
    return pd.DataFrame(rows, columns=COLUMNS)


def _periods(constant: xr.Dataset, place: int, draws: xr.Dataset, on: np.ndarray) -> np.ndarray:
    """The period in each draw, drawn or known."""
    site = str(constant["scale_site"].values[place]) if "scale_site" in constant else ""
    return draws[site].values[on] if site else np.full(on.sum(), constant["period"].values[place])


def _amplitude_and_peak(
    A: np.ndarray, B: np.ndarray, periods: np.ndarray, start: float, tails: list[float]
) -> dict[str, float]:
    """Of cosines and sines from ``start``, with the period of each draw."""
    amplitude = np.hypot(A, B)
    angle, T = np.arctan2(B, A), float(np.median(periods))
    middle = np.angle(np.exp(1j * angle).mean())
    around = (angle - middle + np.pi) % (2 * np.pi) - np.pi
    peak = start + (middle * T / (2 * np.pi)) % T
    low, high = np.quantile(around, tails) * T / (2 * np.pi)
    names = ("amplitude", "amplitude_lower", "amplitude_upper", "peak", "peak_lower", "peak_upper")
    values = (amplitude.mean(), *np.quantile(amplitude, tails), peak, peak + low, peak + high)
    return dict(zip(names, map(float, values), strict=True))
