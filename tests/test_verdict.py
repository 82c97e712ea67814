"""The verdict's sentences, over tables made by hand."""

from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest

from alps_ppl.app.report.verdict import listed, verdict
from alps_ppl.results.inclusion import status


def table(engines, *, r_hat=1.0, prior=0.5, groups=(), spread=MappingProxyType({})):
    """``engines``: {engine: {latent: probability}}; ``groups``: sets of latents of equal covariance, last in order."""
    rows = []
    for engine, latents in engines.items():
        singles = [name for name in latents if " or " not in name]
        number = {name: k for k, name in enumerate(singles)}
        for members in groups:
            number |= {name: min(number[m] for m in members) for name in members}
            number[" or ".join(members)] = number[members[0]]
        for latent, probability in latents.items():
            rows.append(
                {
                    "latent": latent,
                    "engine": engine,
                    "probability": probability,
                    "lowest": probability - spread.get(latent, 0.0),
                    "highest": probability,
                    "r_hat": np.nan
                    if engine == "svi"
                    else r_hat.get(latent, 1.0)
                    if isinstance(r_hat, dict)
                    else r_hat,
                    "ess": np.nan,
                    "mcse": np.nan,
                    "prior": prior.get(latent, 0.5) if isinstance(prior, dict) else prior,
                    "members": latent.count(" or ") + 1,
                    "group": number[latent],
                }
            )
    return pd.DataFrame(rows)


SIX = {"daily": 0.99, "17 h": 0.02, "31 h": 0.004, "slow": 0.999, "fast": 0.0, "rough": 0.05}


def texts(found):
    return [note.text for note in found.notes]


def test_the_answer_in_one_sentence():
    found = verdict(table({"gibbs": SIX}), lp_r_hat=1.004, num_chains=4)
    assert found.headline == (
        "Two of six candidate processes are in these data: daily 0.99, slow 1.00. The chains agree."
    )
    assert found.engine == "gibbs"
    assert [note.level for note in found.notes] == ["good", "plain"]
    assert texts(found) == [
        "The four chains agree (largest R-hat of a gate 1.000, of the log joint 1.00).",
        "Off: 17 h 0.02, 31 h 0.00, fast 0.00, rough 0.05.",
    ]


@pytest.mark.parametrize(
    ("latents", "start"),
    [
        ({"a": 0.0, "b": 0.1}, "None of two candidate processes is in these data. The"),
        ({"a": 0.9, "b": 0.2, "c": 0}, "One of three candidate processes is in these data: a 0.90; one is undecided:"),
        ({"a": 0.3, "b": 0.2, "c": 0}, "None of three candidate processes is in these data; two are undecided: a 0.3"),
        ({"a": 0.95, "b": 1.0}, "Both candidate processes are in these data: a 0.95, b 1.00."),
        ({"a": 0.95, "b": 1.0, "c": 1.0}, "All three candidate processes are in these data: a 0.95, b 1.00, c 1.00."),
        ({"a": 0.95}, "The one candidate process is in these data: a 0.95."),
        ({"a": 0.05}, "The one candidate process isn't in these data."),
        ({"a": 0.5}, "The data don't decide about the one candidate process: a 0.50."),
        ({str(k): float(k < 14) for k in range(20)}, "14 of 20 candidate processes are in these data: 0 1.00,"),
    ],
)  # fmt: skip
def test_counts(latents, start):
    assert verdict(table({"gibbs": latents}), num_chains=2).headline.startswith(start)


def test_thresholds():
    assert [status(p) for p in (0, 0.1, 0.1001, 0.8999, 0.9, 1)] == ["off"] * 2 + ["undecided"] * 2 + ["on"] * 2


def test_chains_that_disagree_come_first_and_the_numbers_stay_the_samplers():
    svi = {name: p if name != "slow" else 0.0 for name, p in SIX.items()}
    both = table({"svi": svi, "gibbs": SIX}, r_hat={"slow": 1.2}, spread={"slow": 0.9})
    found = verdict(both, lp_r_hat=1.02, num_chains=4)
    assert found.engine == "gibbs"
    assert found.headline == (
        "The chains disagree about slow, so that isn't settled. Taken all together: two of six candidate processes are "
        "in these data: daily 0.99, slow 1.00."
    )
    assert found.notes[0].level == "bad"
    assert found.notes[0].text.startswith("The chains disagree about slow (0.10 to 1.00): one chain alone would have")
    alone = verdict(table({"gibbs": SIX}, r_hat=np.inf, spread={"slow": 0.999, "daily": 0.99}), num_chains=2)
    assert alone.headline.startswith("The chains disagree about daily and slow, so these aren't settled. Taken all")


@pytest.mark.parametrize("apart", [{"31 h": 0.004}, {"rough": 0.05}, {"daily": 0.05}])
def test_chains_that_differ_without_another_answer_are_no_alarm(apart):
    found = verdict(table({"gibbs": SIX}, r_hat=1.05, spread=apart), lp_r_hat=1.02, num_chains=4)
    assert found.notes[0].level == "good"
    assert found.headline.endswith("The chains agree.")


def test_too_few_times_come_first():
    found = verdict(table({"gibbs": {"a": 0.998}}), num_chains=4, num_times=2)
    assert found.headline.startswith("2 times are too few to tell one process from another. The one candidate")
    assert found.notes[0].level == "bad"


def test_engines_that_agree_on_gates_may_differ_in_predictions():
    found = verdict(table({"svi": SIX, "gibbs": SIX}), num_chains=4, differences={"predictive mean": 1.36})
    assert any(note.level == "caution" and "differ by up to 1.36 sds" in note.text for note in found.notes)
    assert not any("SVI and Gibbs agree: " in note.text for note in found.notes)


def test_modes():
    """Gates that agree are one thing, the rest another."""
    found = verdict(table({"gibbs": SIX}), lp_r_hat=2.5, num_chains=4)
    assert found.headline.endswith("The chains agree on that, though not on how the outputs load on them.")
    assert found.notes[0].level == "caution"
    assert found.notes[0].text.startswith(
        "The chains agree about every gate, but sit in different modes of the rest: the R-hat of the log joint is 2.50"
    )


def test_one_chain_short_runs_and_svi_alone():
    one = verdict(table({"gibbs": SIX}, r_hat=np.nan), num_chains=1)
    assert one.headline.endswith("slow 1.00. One chain can't tell whether it has converged.")
    assert one.notes[0].level == "caution"
    short = verdict(table({"gibbs": SIX}, r_hat=np.nan), num_chains=4)
    assert short.headline.endswith("The run is too short to check.")
    svi = verdict(table({"svi": SIX}))
    assert svi.engine == "svi"
    assert svi.headline.endswith("slow 1.00. This is SVI's answer alone; no sampler has checked it.")
    assert svi.notes[0].text.startswith("Only SVI was run.")
    vb = verdict(table({"vb": SIX}))
    assert "This is VB's answer alone" in vb.headline
    assert "a Gibbs run (--engine vb,gibbs) would check the gates" in vb.notes[0].text


def test_engines():
    close = {name: min(1.0, p + 0.04) for name, p in SIX.items()}
    found = verdict(table({"svi": close, "gibbs": SIX}), lp_r_hat=1.0, num_chains=4)
    assert "SVI and Gibbs agree: no probability differs by more than 0.04." in texts(found)
    apart = verdict(table({"svi": SIX | {"17 h": 0.95}, "gibbs": SIX}), lp_r_hat=1.0, num_chains=4)
    assert apart.notes[1].level == "caution"
    assert apart.notes[1].text.startswith("SVI and Gibbs differ about 17 h (0.95 and 0.02): SVI settles")


@pytest.mark.parametrize(
    ("members", "name"),
    [
        ((0.5, 0.5), "one of 7a and 7b 1.00"),
        ((0.7, 0.6), "at least one of 7a and 7b 1.00"),
        ((0.02, 0.98), "7b 1.00"),
        ((0.97, 0.98), "7a and 7b 1.00"),
    ],
)
def test_groups_of_equal_covariance(members, name):
    """They count once, at their first member's place, and engines that trade members agree."""
    gibbs = {"3": 0.0, "7a": members[0], "7b": members[1], "11": 1.0, "7a or 7b": 1.0}
    svi = gibbs | {"7a": members[1], "7b": members[0]}
    found = verdict(table({"svi": svi, "gibbs": gibbs}, groups=[("7a", "7b")]), lp_r_hat=1.0, num_chains=4)
    assert found.headline.startswith(f"Two of three candidate processes are in these data: {name}, 11 1.00.")
    assert "SVI and Gibbs agree: no probability differs by more than 0.00." in texts(found)
    assert texts(found)[-1] == "Of equal covariance, and so one candidate each: 7a or 7b."


def test_an_undecided_group_has_its_own_name():
    latents = {"7a": 0.2, "7b": 0.3, "7a or 7b": 0.45}
    assert "candidate process: 7a or 7b 0.45." in verdict(table({"svi": latents}, groups=[("7a", "7b")])).headline


@pytest.mark.parametrize(
    ("at_least", "headline"),
    [
        (
            (1.0, 1.0, 0.95, 0.0),
            "Four of six candidate processes are in these data: day 1.00, three of four memory pro",
        ),
        (
            (1.0, 0.3, 0.0, 0.0),
            "Two of six candidate processes are in these data: day 1.00, one of four memory process",
        ),
        ((0.02, 0.0, 0.0, 0.0), "One of six candidate processes is in these data: day 1.00."),
        ((0.6, 0.2, 0.0, 0.0), "One of six candidate processes is in these data: day 1.00; two are undecided: any of "),
        ((1.0, 1.0, 1.0, 1.0), "Five of six candidate processes are in these data: day 1.00, four of four memory proc"),
    ],
)
def test_interchangeable_processes_count_each(at_least, headline):
    memories = [f"memory {k}" for k in (1, 2, 3, 4)]
    group = " or ".join(memories)
    latents = {"day": 1.0, "week": 0.0} | dict.fromkeys(memories, sum(at_least) / 4) | {group: at_least[0]}
    found = verdict(table({"gibbs": latents}, groups=[memories]), num_chains=4, at_least={group: at_least})
    assert found.headline.startswith(headline)
    assert not any("one candidate each" in text for text in texts(found))


def test_decoys_are_no_candidates():
    off = verdict(table({"gibbs": {"24 h": 1.0, "7 d": 0.0, "decoy 31 h": 0.02}}), num_chains=4)
    assert off.headline == "One of two candidate processes is in these data: 24 h 1.00. The chains agree."
    assert "The decoy is off, as it should be: decoy 31 h 0.02." in texts(off)
    assert "Off: 7 d 0.00." in texts(off)
    on = verdict(table({"gibbs": {"24 h": 1.0, "decoy 31 h": 0.97}}), num_chains=4)
    assert on.headline.startswith(
        "The one candidate process is in these data: 24 h 1.00. But a decoy, which can't be there, isn't off."
    )
    nothing = verdict(table({"gibbs": {"decoy": 0.0}}), num_chains=4)
    assert nothing.headline.startswith("Every process is on or off by its prior, or a decoy: there was nothing")


def test_decoys():
    latents = {"24 h": 1.0, "17 h (Decoy)": 0.97, "31 h decoy": 0.2, "9 h decoy": 0.0}
    found = verdict(table({"gibbs": latents}), lp_r_hat=1.0, num_chains=4)
    decoys = [note for note in found.notes if "dictionary short of a process" in note.text]
    assert [note.level for note in decoys] == ["bad", "caution"]
    assert decoys[0].text.startswith("17 h (Decoy) is on (0.97): a decoy that comes on is a sign of")
    assert decoys[1].text.startswith("31 h decoy is not ruled out (0.20)")


def test_a_prior_of_one_or_zero_is_no_finding():
    found = verdict(table({"gibbs": {"a": 1.0, "b": 0.0, "c": 1.0}}, prior={"a": 1, "b": 0}), num_chains=4)
    assert found.headline.startswith("The one candidate process is in these data: c 1.00.")
    assert texts(found)[-2:] == ["On by assumption (a prior of 1): a.", "Off by assumption (a prior of 0): b."]
    nothing = verdict(table({"gibbs": {"a": 1.0}}, prior=1), num_chains=4)
    assert nothing.headline.startswith("Every process is on or off by its prior: there was nothing to find out.")


def test_listed():
    assert [listed(list("abc")[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


def test_no_rows():
    with pytest.raises(ValueError, match="expected inclusion_table's result, got no rows"):
        verdict(table({}))


def test_a_short_run_that_agrees_is_a_preview():
    short, whole = (verdict(table({"gibbs": SIX}), num_chains=2, num_draws=number) for number in (100, 200))
    assert short.headline.endswith("The chains agree over a short run.")
    assert (short.notes[0].level, whole.notes[0].level) == ("caution", "good")
    assert "The two chains agree over 100 draws of each" in short.notes[0].text
