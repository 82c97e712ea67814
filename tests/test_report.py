"""The report of a folder: whole, self-contained, escaped, and one plain line for a folder that lacks something."""

import functools
import html
import json
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from alps_ppl.app import report
from alps_ppl.app.report import figures, sections
from alps_ppl.app.report.run_folder import RunFolder, read

LATENTS, OUTPUTS = ["<b>daily</b>", "T=7a", "T=7b", "17 h (decoy)"], ["NA", 'u & "v"', "w"]
# Everything on the page that a user wrote.
TEXTS = {
    "latents": LATENTS,
    "outputs": OUTPUTS,
    "units": ["°F", "<hPa>"],
    "gap": "gap",
    "file": "my_<series>.py",
    "label": "hours <after>",
    "key": "start",
    "setting": "<dispersed>",
    "version": "9.9.9",
}
VOID = {"meta", "br", "hr", "img", "path", "rect", "circle"}


class Page(HTMLParser):
    """Tags must close in order; keeps texts, tags and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.tags, self.attributes = [], "", [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def made_up(*, engines=("svi", "gibbs"), num_chains=2, num_draws=50, dates=True, columns=1, texts=TEXTS):
    """What a run writes, of made-up numbers: daily and one of T=7 on, a gap, a forecast, missing cells."""
    rng, num_times = np.random.default_rng(0), 40
    latents, outputs = texts["latents"], texts["outputs"]
    coords = {"latent": latents, "output": outputs, "time": np.arange(num_times - 8.0)}
    y = rng.normal(size=(num_times, 3))
    y[4:7, 0] = y[9, 1] = np.nan
    y[:, 2] = 3.0
    split = np.full(y.shape, "train", dtype=object)
    split[-8:], split[10:14, 1] = "test", texts["gap"]
    trees, frames = {}, []
    for engine in engines:
        shape = (num_chains if engine == "gibbs" else 1, num_draws)
        b = np.zeros((*shape, 4), int)
        b[..., 0] = 1
        b[..., 1] = rng.integers(0, 2, shape)
        b[..., 2] = 1 - b[..., 1]
        posterior = {
            "b": (("chain", "draw", "latent"), b),
            "H": (("chain", "draw", "output", "latent"), rng.normal(size=(*shape, 3, 4))),
            "x": (("chain", "draw", "latent", "time"), rng.normal(size=(*shape, 4, num_times - 8))),
        }
        stats = {"gate_prob": (("chain", "draw", "latent"), np.clip(b, 0.01, 0.99))}
        if engine == "gibbs":
            stats["lp"] = (("chain", "draw"), rng.normal(size=shape))
        constant = {"prior_inclusion_prob": ("latent", np.full(4, 0.5)), "covariance_group": ("latent", [0, 1, 1, 2])}
        constant |= {"prior_of_group": ("latent", [0.5, 0.75, 0.75, 0.5]), "gate": ("latent", np.arange(4))}
        trees[engine] = xr.DataTree.from_dict(
            {
                "posterior": xr.Dataset(posterior, coords),
                "sample_stats": xr.Dataset(stats),
                "observed_data": xr.Dataset({"y": (("time", "output"), y[:-8])}, {"output": outputs}),
                "constant_data": xr.Dataset(constant),
            }
        )
        trees[engine].attrs["engine"] = engine
        time = {f"input_{k}": rng.normal(size=num_times * 3) for k in range(columns)}
        if columns == 1:
            stamps = pd.date_range("2026-01-01", periods=num_times, freq="h")
            time = {"date": np.repeat(stamps.astype(str), 3)} if dates else {}
            time["input"] = np.repeat(np.arange(float(num_times)), 3)
        mean = rng.normal(size=num_times * 3)
        band = {"mean": mean, "sd": 1.0, "lower": mean - 1.6, "upper": mean + 1.6}
        cells = {"output": np.tile(outputs, num_times), "engine": engine, "observed": y.ravel()}
        frames.append(pd.DataFrame({"split": split.ravel(), **time, **cells, **band}))
    scores = pd.concat(frames).drop_duplicates(["engine", "split", "output"])[["engine", "split", "output"]]
    units = scores.output.map(dict(zip(outputs[::2], texts["units"], strict=True))).fillna("as in the file")
    summary = {
        "seed": 7,
        "model_file": texts["file"],
        "versions": {"numpyro": texts["version"]},
        "data": {"input_label": texts["label"], "units": {}, "interval": 0.8},
        "settings": {engine: {"num_steps": 12345, texts["key"]: texts["setting"]} for engine in engines},
        "scores": {"train": {"mean": {"rmse": 1.0, "nlpd": None}}, texts["gap"]: {"mean": {"rmse": 1, "nlpd": None}}},
        "largest_differences": {"inclusion probability": 0.123},
    }
    summary |= {engine: {"seconds": 1.5, "elbo": -1234.5} for engine in engines}
    scores = scores.assign(rmse=0.5, nlpd=np.nan, unit=units)
    return RunFolder(texts["file"].removesuffix(".py"), summary, pd.concat(frames), scores, trees)


def write_folder(folder, **made):
    run = made_up(**made)
    folder.mkdir(parents=True, exist_ok=True)
    for engine, tree in run.trees.items():
        tree.to_netcdf(folder / f"posterior_{engine}.nc", engine="h5netcdf")
    run.predictions.to_csv(folder / "predictions.csv", index=False)
    run.scores.to_csv(folder / "scores.csv", index=False)
    (folder / "summary.json").write_text(json.dumps(run.summary))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = report.write(write_folder(tmp_path_factory.mktemp("run")))
    return path.read_text(encoding="utf-8")


def test_the_page_says_what_the_run_found(page):
    parsed = Page(page)
    assert (
        "Both candidate processes are in these data: <b>daily</b> 0.99, one of T=7a and T=7b 1.00. The" in parsed.text
    )
    for name in (
        *LATENTS,
        *OUTPUTS,
        "°F",
        "<hPa>",
        "12,345",
        "<dispersed>",
        "9.9.9",
        "my_<series>",
        "−1,234.5",
        "0.12",
    ):
        assert name in parsed.text, name
    for words in ("2026-01-01 00:00:00 to 2026-01-02 15:00:00", "test", "gap", "not observed", "80 % band", "seed"):
        assert words in parsed.text, words
    assert "held out as “test”: 24; held out as “gap”: 4" in parsed.text
    headings = [int(tag[1]) for tag in parsed.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert max(np.diff(headings)) == 1
    assert "b" not in parsed.tags
    assert not re.search(r"\bnan\b|None|Undefined", parsed.text)


def test_the_page_needs_nothing_else(page):
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(parsed.tags)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page)
    assert not {name for _, name, _ in parsed.attributes} & {"src", "href", "xlink:href", "srcset", "data"}
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]


def test_every_chart_has_a_description_and_a_colour_is_one_latents(page):
    parsed = Page(page)
    described = [value for tag, name, value in parsed.attributes if name == "aria-label"]
    assert 'u & "v": observed, mean and band at 40 times; shaded: gap, test' in described
    assert any(text.startswith("<b>daily</b>: mean and 90 % band of what it adds to ") for text in described)
    assert any(text.startswith("T=7a + T=7b: mean and 90 % band of what it adds to ") for text in described)
    assert page.count('role="img"') == 3 + 2
    colours = re.findall(r'<i class="swatch" style="--c: (.*?)"></i>(.*?)<', page)
    colours = [(colour, name.strip()) for colour, name in colours]
    by_latent = {name: {colour for colour, other in colours if other == name} for _, name in colours}
    assert all(len(found) == 1 for found in by_latent.values())
    assert by_latent["17 h (decoy)"] == {"var(--grey)"}
    assert by_latent["T=7a"] == by_latent["T=7b"] == by_latent["T=7a + T=7b"] != by_latent["&lt;b&gt;daily&lt;/b&gt;"]


EVIL = [
    "</style><script>x()</script>", '" onload="x()', "' onload='x()", "<!--", "]]>", "&lt;b&gt;", "&#60;b>",
    "{{ 7 * 7 }}", "{% raw %}", "--c: red; }", "url(x)", "\x0c\x0b\r\n", "\u2028", "javascript:x()",
]  # fmt: skip
TEXT = (st.sampled_from(EVIL) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)).filter(
    # A name with "decoy" in it gets a sentence of its own.
    lambda text: text.strip() not in ("", "train", "test") and "decoy" not in text.casefold()
)
NAMES = st.lists(TEXT, min_size=7, max_size=7, unique=True)


@functools.cache
def harmless(gap):
    """The page of harmless names; a split's name, whose label needs room, has so many characters."""
    texts = TEXTS | {"latents": list("abcd"), "outputs": list("uvw"), "key": "k", "gap": "g" * gap}
    return Page(report.render(made_up(dates=False, texts=texts)))


@given(NAMES, st.tuples(TEXT, TEXT), TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_any_text_is_only_text_of_the_page(names, units, gap, file, label, key, setting, version):
    """The page has the tags and attributes of one of harmless names; of them only a description has user's text."""
    texts = {"latents": names[:4], "outputs": names[4:], "units": list(units), "gap": gap, "file": file}
    texts |= {"label": label, "key": key, "setting": setting, "version": version}
    found = Page(report.render(made_up(dates=False, texts=texts)))
    plain = harmless(len(gap))
    assert found.tags == plain.tags
    for one, other in zip(found.attributes, plain.attributes, strict=True):
        assert one == other or one[1] == other[1] == "aria-label"
    for text in (*texts["latents"], *texts["outputs"], *units, gap, file, label, setting, version):
        assert text in found.text


@pytest.mark.parametrize(
    ("made", "expected", "absent"),
    [
        ({"engines": ["svi"]}, "This is SVI's answer alone", "R-hat"),
        ({"engines": ["gibbs"], "num_chains": 1}, "One chain can't tell whether it has converged", "ELBO"),
        ({"num_draws": 2}, "The run is too short to check.", "differ about <b>"),
        ({"dates": False}, "0 to 39", "2026"),
        ({"columns": 3}, "Observed against predicted", "forecast"),
    ],
)
def test_other_runs(made, expected, absent):
    parsed = Page(report.render(made_up(**made)))
    assert expected in parsed.text
    assert absent not in parsed.text
    assert not re.search(r"\bnan\b|None|Undefined", parsed.text)


def test_an_older_folder_without_labels():
    run = made_up(dates=False)
    del run.summary["data"], run.summary["largest_differences"]
    assert "90 % band by Gibbs" in Page(report.render(run)).text


def test_dates_that_read_like_numbers(tmp_path):
    folder = write_folder(tmp_path)
    table = pd.read_csv(folder / "predictions.csv", keep_default_na=False)
    table.assign(date=1980 + table.input.astype(int)).to_csv(folder / "predictions.csv", index=False)
    results = read(folder)
    times = figures.times_of(results.predictions, results.summary)
    assert times.dates
    np.testing.assert_allclose(np.diff(times.places), 365, atol=1)
    assert "1980 to 2019" in Page(report.render(results)).text


def test_numbers():
    values = (-0.001, -1234.5, None, np.nan, np.inf)
    assert [sections.decimals(v, 2) for v in values] == ["0.00", "−1,234.50", "–", "–", "inf"]
    assert [sections.percent(v) for v in (0.126, -0.001, np.nan)] == ["13 %", "0 %", "–"]
    assert [sections.significant(v) for v in (0.012345, 99.96, 12345.6, np.nan)] == ["0.0123", "100", "12,346", "–"]


def test_command(call, tmp_path):
    folder = write_folder(tmp_path)
    status, printed, error = call("report", folder)
    assert (status, printed, error) == (0, f"{folder / 'report.html'}\n", "")
    assert (folder / "report.html").stat().st_size < 300_000


def test_open(call, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("click.launch", opened.append)
    folder = write_folder(tmp_path)
    assert call("report", folder, "--open")[0] == 0
    assert opened == [str(folder.resolve() / "report.html")]


def empty_tree(path):
    xr.DataTree().to_netcdf(path, engine="h5netcdf")


def damage(name, text=None):
    def apply(folder):
        (folder / name).unlink()
        if text is not None:
            (folder / name).write_text(text)

    return apply


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (shutil.rmtree, "which isn't a folder"),
        (damage("summary.json"), "has no summary.json; run the model file again, to the end"),
        (damage("predictions.csv"), "has no predictions.csv;"),
        (damage("posterior_gibbs.nc"), "has no posterior_gibbs.nc;"),
        (damage("posterior_svi.nc", "no netCDF"), "posterior_svi.nc: can't be read: "),
        (damage("summary.json", "{"), "summary.json: can't be read: JSONDecodeError"),
        (damage("summary.json", "{}"), "expected a run's summary, but it has no model_file, no versions, no"),
        (damage("summary.json", "[]"), "expected a run's summary, but it has no model_file, no versions, no"),
        (lambda folder: empty_tree(folder / "posterior_svi.nc"), "expected the files of one whole run;"),
        (damage("predictions.csv", "split,output,engine,observed,mean,lower,upper\ntrain,u,gibbs,1,x,0,1\n"),
         "expected the files of one whole run; some are damaged or of another run"),
        (damage("predictions.csv", ""), "predictions.csv: can't be read: EmptyDataError"),
        (damage("scores.csv", "a,b\n1,2\n"), "expected rows of engine, split, output, rmse, unit, got 1 of a, b"),
    ],
)  # fmt: skip
def test_bad_folders(call, tmp_path, harm, message):
    folder = write_folder(tmp_path / "run")
    harm(folder)
    status, printed, error = call("report", folder)
    assert (status, printed, len(error.splitlines())) == (2, "", 1), error
    assert message in error
    assert not (folder / "report.html").exists()


def test_a_run_and_its_report(call, finished_run):
    """End to end, with dates, several outputs and two engines."""
    out, _ = finished_run
    status, printed, _ = call("report", out)
    assert status == 0
    path = Path(printed.strip())
    text = Page(path.read_text()).text
    path.unlink()
    assert "One of two candidate processes is in these data: week 1.00." in text
    assert "2026-01-05 to 2026-02-09" in text
    end = text.partition("How this was made")[2]
    assert re.search(
        r"alps-ppl run \S+seven.py --out \S+ --seed 3 .*file\s*seven.py\s*its date\s*20.*jax\s*\d", end, re.S
    )


def test_the_end_of_the_page_says_how_to_run_it_again(call, tmp_path, monkeypatch):
    """Its command, read off the page and given where it was given, runs the same problem."""
    monkeypatch.chdir(tmp_path)
    days = pd.date_range("2026-01-05", periods=60, freq="D", name="day")
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), days, ["u", "v"])
    table.to_csv("my <i> table.csv")
    runs = []
    monkeypatch.setattr("alps_ppl.app.run.run", lambda problem, **options: runs.append((problem, options)))
    given = ["fit", "my <i> table.csv", "--latent", "'a & b' = linear_periodic(7d)", "--seed", "3", "--out", "out"]
    assert call(*given)[0] == 0
    made = made_up()
    made.summary.update(runs[0][1]["origin"] | {"finished": "2026-01-05 10:00 UTC"})
    text = report.render(made)
    code = re.search(r'<pre class="command"><code>(.*?)</code>', text)[1]
    command = html.unescape(re.sub("<.*?>", "", code))
    assert call(*shlex.split(command)[1:])[0] == 0
    (one, options), (other, again) = runs
    assert options == again
    assert one.source == other.source
    np.testing.assert_array_equal(one.data.y, other.data.y)
    end = Page(text).text.partition("How this was made")[2]
    assert re.search(r"file\s*my <i> table.csv\s*its date\s*\d{4}-\d\d-\d\d \d\d:\d\d UTC\s*fitted\s*2026-01-05", end)


CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")
@pytest.mark.parametrize("width", [360, 390, 1200])
@pytest.mark.parametrize("long", [False, True])
def test_in_a_browser(page, tmp_path, width, long):
    """Nothing runs over the page's width, however long the names are, and every chart has a height.

    With shorter names no word is broken, no table cut off, and no label covers another one.
    """
    measure = (
        "<script>addEventListener('load', () => parent.postMessage({width: innerWidth,"
        "scroll: document.documentElement.scrollWidth,"
        "charts: [...document.querySelectorAll('.plot')].map(e => [e.clientWidth, e.clientHeight]),"
        "broken: broken(), covered: covered(), cut: [...document.querySelectorAll('.scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.ariaLabel)}, '*'));"
        # Words on two lines.
        "function broken() { const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);"
        " while (walk.nextNode()) for (const word of walk.currentNode.data.matchAll(/[A-Za-z]{2,12}(?![\\w<])/g)) {"
        "  const range = document.createRange(); range.setStart(walk.currentNode, word.index);"
        "  range.setEnd(walk.currentNode, word.index + word[0].length);"
        "  const tops = new Set([...range.getClientRects()].map(r => Math.round(r.top)));"
        "  if (tops.size > 1) found.push(word[0]) } return found }"
        # Labels of shaded stretches, or ticks, that cover each other.
        "function covered() { const found = [];"
        " for (const group of document.querySelectorAll('.span-labels, .x-ticks')) {"
        " const boxes = [...group.children].map(e => e.getBoundingClientRect()).filter(b => b.width);"
        " boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => { if (a.left < b.right - 1 && b.left < a.right - 1 &&"
        "  a.top < b.bottom - 1 && b.top < a.bottom - 1) found.push(group.textContent) })) } return found }</script>"
    )
    page = page.replace("<details>", "<details open>")
    if long:
        page = page.replace("T=7b", "a_process_" * 8).replace("&#34;v&#34;", "an_output_" * 8)
    (tmp_path / "page.html").write_text(page.replace("</body>", measure + "</body>"))
    # A window isn't narrower than 500 pixels, a frame is.
    (tmp_path / "frame.html").write_text(
        "<title></title><script>addEventListener('message', e => { document.title = JSON.stringify(e.data) })</script>"
        f"<iframe src='page.html' style='border: 0; width: {width}px; height: 900px'></iframe>"
    )
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000"]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
         f"file://{tmp_path / 'frame.html'}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1])
    assert found["width"] == width
    assert found["scroll"] <= width
    assert len(found["charts"]) == 5
    assert long or (found["broken"], found["covered"], found["cut"]) == ([], [], [])
    assert np.min(found["charts"]) > 100
