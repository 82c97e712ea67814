"""The figures show what they are given: read back from the axes."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.dates import AutoDateLocator, date2num

from alps_ppl.results import plots
from alps_ppl.results.contributions import strengths


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def prediction(p, time):
    mean = np.sin(time)[:, None] * np.ones(p)
    values = {"mean": mean, "sd": np.ones_like(mean), "lower": mean - 1, "upper": mean + 1}
    return xr.Dataset(
        {name: (("time", "output"), value) for name, value in values.items()},
        coords={"time": time, "output": [f"out {i}" for i in range(p)]},
        attrs={"interval": 0.9},
    )


@pytest.mark.parametrize("p", [1, 3, 7])
def test_reconstruction(p):
    time = np.array([2.0, 0.0, 1.0])
    y = np.arange(3.0 * p).reshape(3, p)
    y[0, 0] = np.nan
    held_out = np.zeros(y.shape, bool)
    held_out[2] = True
    axes = plots.plot_reconstruction(
        {"svi": prediction(p, time), "gibbs": prediction(p, time)}, y, held_out=held_out, units={"out 0": "°F"},
        input_label="t [h]",
    )  # fmt: skip
    assert len(axes) == p
    assert (axes[0].get_title(loc="left"), axes[0].get_ylabel()) == ("out 0", "[°F]")
    assert axes[-1].get_xlabel() == "t [h]"
    legend = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert {"SVI, mean", "Gibbs, 90% interval", "observed", "observed, held out", "hold-out"} <= set(legend)
    for i, ax in enumerate(axes):
        (span,) = [patch for patch in ax.patches if patch.get_label() == "hold-out"]
        assert (span.get_x(), span.get_x() + span.get_width()) == (
            0.5,
            1.5,
        )  # time 1 was held out, its neighbours are 0 and 2
        edges = [line.get_ydata() for line in ax.lines if line.get_linestyle() == "--" and len(line.get_ydata()) == 3]
        np.testing.assert_allclose(edges, [np.sin([0, 1, 2]) - 1, np.sin([0, 1, 2]) + 1])
        line = ax.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), [0, 1, 2])  # drawn in the order of time
        np.testing.assert_allclose(line.get_ydata(), np.sin([0, 1, 2]))
        assert line.get_color() == plots.COLOURS["svi"]
        dots = np.vstack(
            [c.get_offsets() for c in ax.collections if hasattr(c, "get_offsets") and len(c.get_offsets()) > 0]
        )
        assert {(0.0, y[1, i]), (1.0, y[2, i])} <= {tuple(map(float, dot)) for dot in dots}


def test_dates_splits_and_an_outage():
    """Dates on the axis, a test and a forecast told apart, and no line through what has no rows."""
    days = np.delete(
        np.arange("2025-03-01", "2025-05-10", dtype="datetime64[D]").astype("datetime64[ns]"), slice(20, 40)
    )
    split = np.full((len(days), 1), "train", object)
    split[-10:-5], split[-5:] = "test", "forecast"
    y = np.where(split == "forecast", np.nan, 1.0)
    given = prediction(1, np.arange(len(days), dtype=float)).assign_coords(time=days)
    (ax,) = plots.plot_reconstruction({"gibbs": given}, y, held_out=split, input_label="")
    assert np.isnan(ax.lines[0].get_ydata()).sum() == 1
    assert isinstance(ax.xaxis.get_major_locator(), AutoDateLocator)
    starts = date2num(days[[-10, -5]]) - 0.5
    spans = {patch.get_label(): float(patch.get_x()) for patch in ax.patches}
    assert spans == pytest.approx({"test": starts[0], "forecast": starts[1]})
    np.testing.assert_allclose([date2num(line.get_xdata()[0]) for line in ax.lines[1:]], starts)
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.figure.legends[0].get_texts()]
    boxes += [label.get_window_extent() for label in ax.get_xticklabels()] + [ax.title.get_window_extent()]
    assert not [(a, b) for k, a in enumerate(boxes) for b in boxes[k + 1 :] if a.overlaps(b)]


def test_predicted():
    time = np.array([2.0, 0.0, 1.0])
    y = np.arange(6.0).reshape(3, 2)
    held_out = np.array([[True], [False], [False]]) * np.ones((1, 2), bool)
    predictions = {"svi": prediction(2, time), "gibbs": prediction(2, time)}
    axes = plots.plot_predicted(predictions, y, held_out=held_out, units={"out 0": "°F"})
    assert axes.shape == (2, 2)
    assert (axes[0, 0].get_xlabel(), axes[1, 0].get_ylabel()) == ("predicted [°F]", "observed")
    for i in (0, 1):
        training = axes[i, 1].collections[0].get_offsets()
        np.testing.assert_allclose(training, np.stack([np.sin(time[1:]), y[1:, i]], 1))
        (bars,) = axes[i, 1].containers
        np.testing.assert_allclose(bars[0].get_xydata(), [[np.sin(2.0), y[0, i]]])
        (bar,) = bars[2][0].get_segments()
        np.testing.assert_allclose(bar[:, 0], [np.sin(2.0) - 1, np.sin(2.0) + 1])


def test_inclusion():
    table = pd.DataFrame(
        {
            "latent": ["a", "b"] * 2,
            "engine": ["svi"] * 2 + ["gibbs"] * 2,
            "probability": [0.9, 0.1, 1.0, 0.2],
            "mcse": [np.nan, np.nan, 0.0, 0.01],
            "prior": 0.5,
        }
    )
    ax = plots.plot_inclusion(table)
    heights = [bar.get_height() for bars in ax.containers if hasattr(bars, "patches") for bar in bars.patches]
    assert heights == [0.9, 0.1, 1.0, 0.2]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b"]
    # An error bar reaches up to its label, not into it.
    b = next(text for text in ax.texts if text.get_text() == "0.20")
    assert b.xy[1] == pytest.approx(0.22)


def tree(scale, on=(1, 0)):
    """A posterior with latents a and b, of which the first is always on."""
    rng = np.random.default_rng(0)
    draws = {
        "H": (("chain", "draw", "output", "latent"), scale * rng.normal(size=(2, 20, 3, 2))),
        "x": (("chain", "draw", "latent", "time"), rng.normal(size=(2, 20, 2, 5))),
        "b": (("chain", "draw", "latent"), np.broadcast_to(on, (2, 20, 2))),
    }
    coords = {"output": list("uvw"), "latent": list("ab"), "time": np.arange(5.0)}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(draws, coords=coords)})


def test_mixing_has_one_scale_for_all_engines():
    axes = plots.plot_mixing({"svi": tree(1.0), "gibbs": tree(3.0)})
    assert axes.shape == (2, 2)
    assert axes[0, 0].images[0].get_clim() == axes[1, 0].images[0].get_clim()
    assert axes[0, 1].images[0].get_clim() == axes[1, 1].images[0].get_clim()
    bars = [ax.get_ylabel() for ax in axes[0, 0].figure.axes[4:]]
    assert bars == ["[unit of the output]", "[(unit of the output)²]"]
    assert [label.get_color() for label in axes[1, 0].get_xticklabels()] == ["black", "#999999"]


def test_latents_that_are_on():
    axes = plots.plot_latents({"svi": tree(1.0), "gibbs": tree(1.0, on=(0, 0))})
    assert [ax.get_title(loc="left") for ax in axes] == ["a in u"]
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["SVI (1.00)"]  # never on in the other
    (one,) = plots.plot_latents(tree(1.0))  # a tree by itself
    assert one.get_title(loc="left") == "a in u"
    (none,) = plots.plot_latents({"gibbs": tree(1.0, on=(0, 0))})
    assert none.get_title(loc="left") == "no latent has a probability above 1/2"


def test_contributions_have_gaps_and_dates():
    made = tree(1.0)
    days = np.array(["2025-01-01", "2025-01-02", "2025-01-03", "2025-02-01", "2025-02-02"], "datetime64[ns]")
    (ax,) = plots.plot_latents(made, time=days)
    assert np.isnan(ax.lines[0].get_ydata()).sum() == 1
    assert isinstance(ax.xaxis.get_major_locator(), AutoDateLocator)


def test_strengths():
    """The numbers of ``strengths`` in the cells; a process that is on in no draw has none, and a grey name."""
    made = tree(1.0)
    (ax,) = plots.plot_strengths({"gibbs": made})
    rows = strengths(made)
    assert [text.get_text() for text in ax.texts] == [
        f"{row.mean:.2f} ± {row.sd:.2f}".replace("-", "−") for row in rows[["mean", "sd"]].itertuples(name="Row")
    ]
    assert [label.get_color() for label in ax.get_xticklabels()] == ["black", "#999999"]


def test_engines():
    rows = [("inclusion probability", "a", 1.0, 0.5, 0.5, 0.01), ("predictive mean", "u", np.nan, np.nan, 0.2, np.nan)]
    rows += [("predictive sd", "u", 1.1, 1.0, 0.1, np.nan)]
    columns = ["quantity", "of", "svi", "gibbs", "difference", "mcse"]
    axes = plots.plot_engines(pd.DataFrame(rows, columns=columns))
    assert axes[0].texts[0].get_text().endswith("a: 1.00, 0.50")
    assert [bar.get_height() for bar in axes[1].patches] == [0.2, 0.1]
    rows += [("strength mean", "u, a", 1.0, 0.9, 0.1, np.nan), ("strength sd", "u, a", 0.1, 0.2, -0.1, np.nan)]
    axes = plots.plot_engines(pd.DataFrame(rows, columns=columns))
    assert axes[2].get_xlabel() == "SVI"


def test_of_fits_by_name(fits):
    """Latents keep their names on the axes; training has the loss's number of steps."""
    axes = plots.plot_mixing(fits["gibbs"])
    assert [label.get_text() for label in axes[0, 0].get_xticklabels()] == list(fits["gibbs"].model.latents)
    titles = [ax.get_title(loc="left") for ax in plots.plot_latents(fits)]
    assert [title.partition(" in ")[0] for title in titles] == ["T=7 + T=7 again", "smooth"]
    elbo, temperature = plots.plot_training(fits["svi"])
    np.testing.assert_allclose(elbo.lines[0].get_ydata(), -fits["svi"].losses)
    np.testing.assert_allclose(temperature.lines[0].get_ydata(), fits["svi"].temperatures)
    with pytest.raises(TypeError, match=r"fit: .*fit_svi.*got GibbsFit"):
        plots.plot_training(fits["gibbs"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.plot_latents(tree(1.0, on=(1, 1)), axes=plt.subplots()[1]), "axes: .*2 latents .*got 1"),
        (lambda: plots.plot_engines(pd.DataFrame({"latent": []})), "comparison: .*compare_engines"),
    ],
)
def test_what_cannot_be_drawn(call, message):
    with pytest.raises(ValueError, match=message):
        call()
