"""The gallery's tables, and what its pages' commands make of them.

``python -m experiments.gallery tables`` writes the tables, ``docs/gallery/NAME.csv``. ``... run [NAME ...]`` takes the
commands out of the page ``docs/gallery/NAME.md``, runs them and puts the figures that the page shows beside it.
``... again NAME --tables 5`` runs them on other tables of the same kind, and prints whether what the page concludes
holds. ``... meters FOLDER`` writes the many tables of the page "a thousand tables".
"""

import contextlib
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
from PIL import Image

from alps_ppl.app.cli import cli
from experiments import store
from experiments.page_pictures import DESK, Camera, save
from experiments.real_tables import ou

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "gallery"
# A table, and what is true in it.
Made = tuple[pd.DataFrame, dict[str, Any]]
WIDTH = 1100
QUIET = ["--no-progress"]
SHORT = ("GIBBS.num_warmup=200", "GIBBS.num_samples=300", "GIBBS.num_chains=2")

ROOMS = ["dairy", "fruit", "meat"]
HARBOURS = ["outer", "bay", "port"]
TIDES = {"M2": 12.4206, "S2": 12.0, "N2": 12.6583}


def wave(t: np.ndarray, period: float, peak: float | list[float], size: list[float]) -> np.ndarray:
    """A cycle in several outputs, (time, output): each with a size and a first peak of its own."""
    return np.cos(2 * np.pi * (t[:, None] - np.asarray(peak)) / period) * size


def memories(rng: np.random.Generator, n: int, scales: list[float]) -> np.ndarray:
    """A memory of variance 1 for each lengthscale in steps, (time, output)."""
    return np.stack([ou(rng, n, scale) for scale in scales], 1)


def tides(seed: int) -> Made:
    """Sea level (m) at three harbours every three hours for 45 days."""
    rng, n = np.random.default_rng([seed, 1]), 360
    hours = 3.0 * np.arange(n)
    late = np.array([0.0, 0.7, 2.2])
    sizes = {"M2": [1.6, 1.95, 2.3], "S2": [0.55, 0.66, 0.8], "N2": [0.3, 0.36, 0.44]}
    level = np.array([3.1, 3.4, 4.0]) + 0.12 * ou(rng, n, 12)[:, None] * [1.0, 1.1, 1.4]
    for peak, (name, period) in enumerate(TIDES.items(), start=2):
        level += wave(hours, period, peak + late, sizes[name])
    level += 0.04 * memories(rng, n, [4, 3, 5]) + 0.03 * rng.normal(size=level.shape)
    stamps = pd.date_range("2025-03-01", periods=n, freq="3h", name="time")
    return pd.DataFrame(level.round(2), stamps, HARBOURS), {
        "sizes": sizes,
        "late": late.tolist(),
        "sds": level.std(0).tolist(),
    }


def soil(seed: int) -> Made:
    """Soil temperature (°C) at four depths by the hour for twelve days: the deeper, the later and the smaller."""
    rng, n = np.random.default_rng([seed, 2]), 288
    hours, depth, damping = np.arange(float(n)), np.array([2.0, 10.0, 20.0, 30.0]), 12.0
    peak = 14 + depth / damping * 24 / (2 * np.pi)
    y = 17 + wave(hours, 24, peak, 8 * np.exp(-depth / damping)) + ou(rng, n, 72)[:, None] * [1.8, 1.5, 1.2, 0.9]
    y += memories(rng, n, [4, 6, 8, 10]) * [0.6, 0.4, 0.2, 0.1] + 0.1 * rng.normal(size=y.shape)
    stamps = pd.date_range("2025-06-02", periods=n, freq="h", name="time")
    return pd.DataFrame(y.round(2), stamps, [f"depth_{d:.0f}cm" for d in depth]), {"peak": peak.tolist()}


def shift(seed: int) -> Made:
    """Daily inflow (1000 m³) to four districts for 150 days: three of them shift on 12 June."""
    rng, n = np.random.default_rng([seed, 3]), 150
    days = np.arange(float(n))
    stamps = pd.date_range("2025-04-01", periods=n, freq="D", name="day")
    date = pd.Timestamp("2025-06-12")
    y = np.array([41.0, 62.0, 35.0, 28.0]) + wave(days, 7, 4, [2.2, 3.0, 1.5, 1.2])
    y += (stamps >= date)[:, None] * [-4.5, -6.5, 3.5, 0.0]
    y += memories(rng, n, [3, 4, 3, 2]) * [0.8, 1.2, 0.7, 0.6] + rng.normal(size=y.shape) * [0.9, 1.3, 0.8, 0.7]
    return pd.DataFrame(y.round(1), stamps, ["north", "centre", "south", "east"]), {
        "day": (date - stamps[0]).days - 0.5
    }


def spikes(seed: int) -> Made:
    """Temperatures (°C) of three cold rooms by the hour for twelve days, of which 2 % are nonsense."""
    rng, n = np.random.default_rng([seed, 4]), 288
    hours = np.arange(float(n))
    y = np.array([3.5, 4.0, -1.5]) + wave(hours, 24, 15, [0.5, 0.35, 0.25])
    y += ou(rng, n, 48)[:, None] * [0.3, 0.3, 0.2] + memories(rng, n, [4, 3, 5]) * [0.15, 0.1, 0.12]
    y += 0.12 * rng.normal(size=y.shape)
    moved = rng.random(y.shape) < 0.02
    y += moved * rng.choice([-1, 1], y.shape) * rng.uniform(8, 25, y.shape)
    stamps = pd.date_range("2025-01-13", periods=n, freq="h", name="time")
    return pd.DataFrame(y.round(2), stamps, ROOMS), {
        "spikes": [(str(stamps[i]), ROOMS[j]) for i, j in np.argwhere(moved)]
    }


def sales(seed: int) -> Made:
    """Monthly sales (1000 €) of three shops for ten years: fourfold growth, a season that is a share of the level."""
    rng, n = np.random.default_rng([seed, 5]), 120
    stamps = pd.date_range("2015-01-01", periods=n, freq="MS", name="month")
    months = np.arange(float(n))
    season = np.exp(2 * (np.cos(2 * np.pi * (months - 11) / 12) - 1))[:, None] * [0.5, 0.35, 0.25]
    log = np.log([80.0, 45.0, 120.0]) + np.log(4) * months[:, None] / n * [1.0, 1.2, 0.8] + season
    log += 0.04 * memories(rng, n, [4, 5, 3]) + 0.03 * rng.normal(size=log.shape)
    return pd.DataFrame(np.exp(log).round(1), stamps, ["city", "harbour", "mall"]), {}


def business(seed: int) -> Made:
    """What a help desk gets on the business days of a year, nine holidays missing."""
    rng = np.random.default_rng([seed, 6])
    holidays = ["01-01", "03-29", "04-01", "05-01", "05-09", "05-20", "10-03", "12-25", "12-26"]
    stamps = pd.bdate_range("2024-01-01", "2024-12-31", name="day")
    stamps = stamps[~stamps.isin(pd.to_datetime([f"2024-{day}" for day in holidays]))]
    n = len(stamps)
    profile = np.array([1.0, 0.35, 0.0, -0.4, -0.95])[stamps.day_of_week]  # Monday to Friday
    y = np.array([420.0, 180.0, 95.0]) + profile[:, None] * [60.0, 20.0, 9.0] + ou(rng, n, 40)[:, None] * [30.0, 14, 5]
    y += memories(rng, n, [3, 4, 3]) * [14, 7, 4] + rng.normal(size=y.shape) * [22.0, 10, 6]
    table = pd.DataFrame(y.round(), stamps, ["calls", "chats", "letters"]).astype(int)
    return table, {"week": profile.tolist()}


def nowcast(seed: int) -> Made:
    """Fifteen years of three monthly indicators, and a quarterly growth rate whose last quarter isn't out yet."""
    rng, n = np.random.default_rng([seed, 7]), 180
    stamps = pd.date_range("2010-01-01", periods=n, freq="MS", name="month")
    cycle = np.convolve(ou(rng, n + 5, 14), np.ones(6) / 6, "valid")
    cycle /= 0.85
    y = np.array([100.0, 60.0, 1.5]) + cycle[:, None] * [6.0, 45.0, 0.7]
    y += memories(rng, n, [3, 2, 2]) * [1.5, 15, 0.3] + rng.normal(size=y.shape) * [1.8, 18, 0.4]
    growth = 1.8 + 1.6 * np.convolve(cycle, np.ones(3) / 3)[:n] + 0.5 * rng.normal(size=n)
    ends = stamps.month % 3 == 0
    table = pd.DataFrame(y.round(1), stamps, ["orders", "jobs", "retail"])
    table["gdp"] = np.where(ends, growth.round(1), np.nan)
    last = table.gdp.iloc[-1]
    table.loc[stamps[-1], "gdp"] = np.nan
    return table, {"gdp": float(last)}


TABLES: dict[str, Callable[[int], Made]] = {
    "tides": tides,
    "lag": soil,
    "shift": shift,
    "spikes": spikes,
    "sales": sales,
    "business_days": business,
    "nowcast": nowcast,
}


def meters(folder: Path, number: int = 1000, seed: int = 0) -> None:
    """Power (kW) and water (m³/h) of ``number`` houses by the hour for eight days, as ``folder``/house_0001.csv.

    Houses whose number ends in 0 to 6 have a daily cycle, those in 0 to 2 also one of twelve hours.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hours = np.arange(192.0)
    stamps = pd.date_range("2025-02-03", periods=192, freq="h", name="time")
    for house in range(number):
        rng = np.random.default_rng([seed, 8, house])
        y = np.array([1.2, 0.4]) + 0.15 * memories(rng, 192, [2.0, 2.0]) + 0.25 * rng.normal(size=(192, 2))
        if has("daily", house):
            y += wave(hours, 24, rng.uniform(0, 24, 2), rng.uniform(0.3, 0.6, 2))
        if has("half a day", house):
            y += wave(hours, 12, rng.uniform(0, 12, 2), rng.uniform(0.2, 0.4, 2))
        pd.DataFrame(y.round(2), stamps, ["power", "water"]).to_csv(folder / f"house_{house:04d}.csv")


def has(process: str, house: int) -> bool:
    """Whether a house of ``meters`` has a process."""
    return house % 10 < {"daily": 7, "half a day": 3}.get(process, 0)


# What a page concludes, from the folder of a run and what is true in its table: what has to hold, and numbers.

Told = dict[str, bool | float | str]


def gates(out: Path) -> pd.Series:
    """The probability of each process."""
    return pd.read_csv(out / "inclusion.csv").set_index("latent").probability


def only(out: Path, *on: str) -> Told:
    """Whether these processes are there, and no others."""
    found = gates(out)
    there = {f"{name} on": bool(found[name] > 0.9) for name in on}
    return there | {f"{name} off": bool(p < 0.5) for name, p in found.items() if name not in on}


def ahead(out: Path) -> Told:
    """The part of the held-out cells within their 90 % bands, the bands' width and the error, in means of outputs."""
    cells = pd.read_csv(out / "predictions.csv").query("split == 'test'").dropna(subset="observed")
    mean = cells.groupby("output")["observed"].transform("mean")
    return {
        "held": float(cells.observed.between(cells.lower, cells.upper).mean()),
        "width": float(((cells.upper - cells.lower) / mean).mean()),
        "rmse": float((((cells["mean"] - cells.observed) / mean) ** 2).mean() ** 0.5),
    }


def cycles_of(out: Path, process: str) -> pd.DataFrame:
    """The rows of ``cycles.csv`` of a process, by output."""
    return pd.read_csv(out / "cycles.csv").query("process == @process").set_index("output")


def beside(found: pd.DataFrame, column: str, true: Iterable[float], unit: Iterable[float] | None = None) -> Told:
    """For each output a number of ``cycles.csv``, its 90 % interval and the true one, in a unit of its training sds."""
    units = np.ones(len(found)) if unit is None else unit
    rows = zip(found.index, found.filter(regex=f"^{column}").to_numpy(), true, units, strict=True)
    return {
        f"{column} at {output}": "{:.2f} ({:.2f} to {:.2f}), true {:.2f}".format(*(values * sd), value)
        for output, values, value, sd in rows
    }


def tides_told(out: Path, truth: dict) -> Told:
    found, true = cycles_of(out, "M2"), 2 + np.array(truth["late"])
    close = bool((abs(found.peak[HARBOURS] - true) < 0.1).all())
    told = only(out, *TIDES, "surge") | {"high water within .1 h": close} | beside(found, "peak", true)
    for name in TIDES:
        sizes = beside(cycles_of(out, name), "amplitude", truth["sizes"][name], truth["sds"])
        told |= {f"{name}, {place}": text for place, text in sizes.items()}
    return told


def lag_told(out: Path, truth: dict) -> Told:
    found = cycles_of(out, "daily")
    off = float(abs((found.peak - truth["peak"] + 12) % 24 - 12).max())
    peaks = {"peaks within 1 h": off < 1, "hours off": off} | beside(found, "peak", truth["peak"])
    return only(out, "daily", "weather") | peaks | ahead(out)


def shift_told(out: Path, truth: dict) -> Told:
    there = only(out, "weekly", "shift")
    found = pd.read_csv(out / "scales.csv").iloc[0]
    shares = pd.read_csv(out / "variance_shares.csv").query("latent == 'shift'")
    return (
        there
        | {"shift": float(gates(out)["shift"]), "slow": float(gates(out)["slow"])}
        | {
            "date within 2 days": bool(abs(found["median"] - truth["day"]) <= 2),
            "date in its interval": float(found["lower"] <= truth["day"] <= found["upper"]),
            "days of the interval": float(found["upper"] - found["lower"]),
        }
        | {f"share of {row.output}": float(row.share) for row in shares.itertuples()}
    )


def spikes_told(out: Path, truth: dict) -> Told:
    cells = pd.read_csv(out / "predictions.csv")
    found = set(pd.read_csv(out / "outliers.csv")[["time", "output"]].itertuples(index=False, name=None))
    true = set(truth["spikes"])
    width = float((cells.upper - cells.lower).mean())
    return only(out, "daily", "slow") | {
        "all but 2 spikes found": len(true - found) <= 2,
        "at most 2 others": len(found - true) <= 2,
        "spikes": float(len(true)),
        "found": float(len(true & found)),
        "others": float(len(found - true)),
        "width": width,
    }


def sales_told(out: Path, truth: dict) -> Told:
    held = ahead(out)
    return only(out, "trend", "season") | {"bands hold 60 %": held["held"] > 0.6} | held


def business_told(out: Path, truth: dict) -> Told:
    held, cells = ahead(out), pd.read_csv(out / "predictions.csv", parse_dates=["date"])
    weekdays = cells.query("split == 'forecast'").date.dt.day_of_week
    return (
        only(out, "week", "slow")
        | {"bands hold 60 %": held["held"] > 0.6, "no weekend ahead": bool((weekdays < 5).all())}
        | held
    )


def nowcast_told(out: Path, truth: dict) -> Told:
    cell = pd.read_csv(out / "predictions.csv").query("output == 'gdp'").iloc[-1]
    off = float(truth["gdp"] - cell["mean"])
    held = {
        "gdp within 4 sds": bool(abs(off) < 4 * cell.sd),
        "in its band": float(cell.lower <= truth["gdp"] <= cell.upper),
    }
    return only(out, "cycle") | held | {"nowcast": cell["mean"], "sd": cell.sd, "error": off}


def thousand_told(out: Path, truth: dict) -> Told:
    rows = pd.read_csv(out / "inclusion.csv")
    house = rows.table.str.extract(r"(\d+)$")[0].astype(int)
    there = np.array([has(*pair) for pair in zip(rows.latent, house, strict=True)])
    on = rows.probability > 0.5
    return {"found": bool(on[there].mean() > 0.9), "no others": bool(on[~there].mean() < 0.15)} | {
        f"{name} {'there' if yes else 'not'}": float(on[(rows.latent == name) & (there == yes)].mean())
        for name in rows.latent.unique()
        for yes in (True, False)
        if ((rows.latent == name) & (there == yes)).any()
    }


TOLD: dict[str, Callable[[Path, dict], Told]] = {
    "tides": tides_told,
    "lag": lag_told,
    "shift": shift_told,
    "spikes": spikes_told,
    "sales": sales_told,
    "business_days": business_told,
    "nowcast": nowcast_told,
    "thousand": thousand_told,
}


# The pages' commands, and their figures.


def commands(name: str) -> list[list[str]]:
    """The words of each command in a page's fenced blocks, without ``.venv/bin/``."""
    blocks = re.findall(r"^```\n(\.venv/bin/.*?)^```", (FOLDER / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix(".venv/bin/")) for line in lines]


def folder_of(words: list[str]) -> Path:
    """Where a command of ``alps-ppl`` writes to."""
    return Path(words[words.index("--out") + 1])


def execute(words: list[str]) -> None:
    """A page's command, in this process and folder."""
    if words[0] == "alps-ppl":
        cli.main(words[1:], standalone_mode=False, obj=shlex.join(words))
    else:
        main.main(words[words.index("experiments.gallery") + 1 :], standalone_mode=False)


@contextlib.contextmanager
def workplace(name: str, table: pd.DataFrame | None) -> Iterator[None]:
    """An empty folder to be in, with the page's table where its command looks for it."""
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        if table is not None:
            path = Path("docs", "gallery", f"{name}.csv")
            path.parent.mkdir(parents=True)
            table.to_csv(path)
        yield


def figures_of(name: str) -> list[str]:
    """The pictures that a page shows."""
    return re.findall(r"^!\[.*\]\((\w+)\.png\)$", (FOLDER / f"{name}.md").read_text(), re.MULTILINE)


def picture(name: str, figure: str, out: Path) -> Image.Image:
    """NAME_reconstruction is that figure of the run; NAME_report is the top of the page of many tables."""
    which = figure.removeprefix(f"{name}_")
    if which != "report":
        with Image.open(out / "figures" / f"{which}.png") as image:
            return image.convert("RGB").resize((WIDTH, image.height * WIDTH // image.width))
    with tempfile.TemporaryDirectory() as folder:
        page, tops = Camera(out / "report.html", Path(folder)).whole(DESK, dark=False)
        return page.crop((200, 0, DESK - 200, min(tops.values()) - 20))


@click.group()
def main() -> None:
    """The gallery's tables and what its pages' commands make of them."""


@main.command()
def tables() -> None:
    """Write the pages' tables."""
    for name, make in TABLES.items():
        make(0)[0].to_csv(FOLDER / f"{name}.csv")


@main.command("meters")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--number", type=click.IntRange(min=1), default=1000, show_default=True)
def write_meters(folder: Path, number: int) -> None:
    """Write the tables of the page "a thousand tables"."""
    try:
        meters(folder, number)
    except OSError as error:
        raise click.BadParameter(f"{str(folder)!r}: {error.strerror or error}", param_hint="FOLDER") from None


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(list(TOLD)))
def run(names: tuple[str, ...]) -> None:
    """Run the commands of these pages, or of all, and write their figures."""
    for name in names or TOLD:
        table, truth = TABLES[name](0) if name in TABLES else (None, {})
        with workplace(name, table):
            for words in commands(name):
                execute([*words, *QUIET] if words[0] == "alps-ppl" else words)
            outs = [folder_of(words) for words in commands(name) if "--out" in words]
            for out in outs:
                click.echo(f"{name}, {out}: {json.dumps(TOLD[name](out, truth), default=float, indent=1)}")
            for figure in figures_of(name):
                save(picture(name, figure, outs[0]), FOLDER / f"{figure}.png")


@main.command()
@click.argument("name", type=click.Choice(list(TABLES)))
@store.how_many(5, first=1)
@click.option("--set", "settings", multiple=True, default=SHORT, help="As of alps-ppl fit; default a short run.")
def again(name: str, number: int, settings: tuple[str, ...]) -> None:
    """Run a page's commands on other tables of its kind; a column per table."""
    rows: dict[tuple[str, str], list] = {}
    for seed in range(1, number + 1):
        table, truth = TABLES[name](seed)
        with workplace(name, table):
            for words in commands(name):
                execute([*words, *QUIET, *(word for setting in settings for word in ("--set", setting))])
                for fact, value in TOLD[name](folder_of(words), truth).items():
                    rows.setdefault((folder_of(words).name, fact), []).append(value)
    click.echo(pd.DataFrame(rows, pd.Index(range(1, number + 1), name="table")).T.to_string())


if __name__ == "__main__":
    main(prog_name="python -m experiments.gallery")
