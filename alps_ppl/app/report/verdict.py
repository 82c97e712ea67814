"""What an inclusion table says, in words: which processes are there, and how far to believe it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from alps_ppl.results.inclusion import (
    LARGEST_LOG_JOINT_R_HAT,
    OFF,
    ON,
    disagreements,
    status,
    worst_convergence,
)
from alps_ppl.tables.proposals import is_decoy

LARGEST_ENGINE_DIFFERENCE = 0.1
# Of the engines' predictions, in their sds.
LARGEST_PREDICTIVE_DIFFERENCE = 0.5
# Of fewer draws of each chain that the chains agree is said with a caution: a preview has 100.
FEWEST_DRAWS = 200
# Fewer times can't tell one process from another, whatever their gates say.
FEWEST_TIMES = 12
NAMES = {"svi": "SVI", "gibbs": "Gibbs", "vb": "VB"}
# How an engine without a sampler errs.
ALONE = {
    "svi": "It settles in one mode and tends to be too sure of it",
    "vb": "Where the data don't decide its probabilities are a guess, and of like processes it takes one",
}
ORDINALS = ("", "a first", "a second", "a third", "a fourth", "a fifth", "a sixth")
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class Note(NamedTuple):
    """A sentence, and whether it is "good" news, calls for "caution", is "bad" or just "plain"."""

    level: str
    text: str


class Verdict(NamedTuple):
    """``engine``: whose probabilities these are. ``headline``: the answer. ``notes``: what supports or limits it."""

    engine: str
    headline: str
    notes: list[Note]


def verdict(
    table: pd.DataFrame,
    *,
    lp_r_hat: float = np.nan,
    num_chains: int = 0,
    num_draws: int | None = None,
    num_times: int | None = None,
    differences: Mapping[str, float | None] | None = None,
    at_least: Mapping[str, Sequence[float]] | None = None,
    misfit: Sequence[Note] = (),
) -> Verdict:
    """The answer of ``inclusion_table``'s ``table``.

    ``lp_r_hat``, ``num_chains`` and ``num_draws`` of each are the Gibbs run's, ``num_times`` the table's,
    ``differences`` those between the engines. The numbers are the sampler's where there is one. Latents of equal
    covariance count as one candidate, but for those of ``at_least``, which can change places: by their group's name,
    the probabilities that at least one, two, ... of them are on. ``misfit``: that what is left isn't noise. A prior of
    0 or 1 makes no candidate, and neither does the name of a decoy.
    """
    if len(table) == 0:
        raise ValueError("table: expected inclusion_table's result, got no rows")
    engines = list(dict.fromkeys(table.engine))
    convergence, in_short = _convergence(table, engines, lp_r_hat, num_chains, num_draws)
    disagree = convergence.level == "bad"
    engine = "gibbs" if "gibbs" in engines else engines[0]
    at_least = at_least or {}
    rows = [row for row in _candidates(table, engine, at_least) if not is_decoy(row["name"])]
    candidates, free = rows, [c for c in rows if 0 < c["prior"] < 1]
    decoys = _decoys(table, engine)
    answer = _answer(free, decoys)
    headline = f"{in_short} Taken all together: {answer[0].lower()}{answer[1:]}" if disagree else f"{answer} {in_short}"
    if misfit:
        headline += " But what the model leaves of the outputs isn't noise, so a process may stand in for another."
    notes = [*misfit, convergence, *_engines_note(table, engines, differences or {}), *decoys]
    if num_times is not None and num_times < FEWEST_TIMES:
        headline = f"{num_times} times are too few to tell one process from another. {headline}"
        text = (
            f"There are {num_times} times. So few fit whatever process is offered, and the probabilities say more of "
            f"the priors than of these data; {FEWEST_TIMES} are the least that this page takes for an answer."
        )
        notes.insert(0, Note("bad", text))
    if off := [c for c in free if c["status"] == "off"]:
        notes.append(Note("plain", f"Off: {_numbers(off)}."))
    for prior, word in ((1, "On"), (0, "Off")):
        if fixed := [c["name"] for c in candidates if c["prior"] == prior]:
            notes.append(Note("plain", f"{word} by assumption (a prior of {prior}): {listed(fixed)}."))
    if groups := [n for n in _whole(table, engine).query("members > 1").latent.astype(str) if n not in at_least]:
        notes.append(Note("plain", f"Of equal covariance, and so one candidate each: {'; '.join(groups)}."))
    return Verdict(engine, headline, notes)


def listed(items: Sequence[str], last: str = "and") -> str:
    """a, b and c."""
    return f" {last} ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def chains_apart(rows: pd.DataFrame) -> str:
    """The processes of ``disagreements``, with the chains' lowest and highest probability."""
    return listed([f"{row.latent} ({row.lowest:.2f} to {row.highest:.2f})" for row in rows.itertuples()])


def _word(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else str(number)


def _whole(table: pd.DataFrame, engine: str) -> pd.DataFrame:
    """An engine's rows, groups in the place of their members; groups are numbered by their first ones."""
    rows = table[table.engine == engine]
    return rows[rows.members == rows.groupby("group").members.transform("max")].sort_values("group")


def _candidates(table: pd.DataFrame, engine: str, at_least: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Name, probability, status and prior of each distinct covariance, and of how many processes that is said."""
    single = table[(table.engine == engine) & (table.members == 1)]
    found = []
    for row in _whole(table, engine).itertuples():
        members = single[single.group == row.group]
        if str(row.latent) in at_least:
            named = _ranks(str(members.latent.iloc[0]).rpartition(" ")[0], at_least[str(row.latent)])
        else:
            named = [(_name(row, members), row.probability, 1)]
        found += [
            {"name": name, "probability": p, "status": status(p), "prior": row.prior, "count": count}
            for name, p, count in named
        ]
    return found


def _ranks(stem: str, at_least: Sequence[float]) -> list[tuple[str, float, int]]:
    """Of processes that can change places, "memory 1" and so on: those that are on, the next ones, and the rest."""
    total = f"{_word(len(at_least))} {stem} processes"
    number = sum(p >= ON for p in at_least)
    found = [(f"{_word(number)} of {total}", at_least[number - 1], number)] if number else []
    for rank, p in enumerate(at_least[number:], number + 1):
        name = f"any of {total}" if rank == 1 else f"{ORDINALS[rank] if rank < len(ORDINALS) else 'one more'} {stem}"
        if p <= OFF:
            return [*found, (name, p, len(at_least) - rank + 1)]
        found.append((name, p, 1))
    return found


def _name(row: Any, members: pd.DataFrame) -> str:
    """A process's name; of a group that is on, as much as is known of which member it is."""
    if row.members == 1 or status(row.probability) != "on":
        return str(row.latent)
    on = [str(name) for name in members.latent[members.probability >= ON]]
    if on:
        return listed(on)
    # Their sum is how many of them are on, on average.
    few = "one" if members.probability.sum() <= row.probability + OFF else "at least one"
    return f"{few} of {listed([str(name) for name in members.latent])}"


def _numbers(candidates: list[dict[str, Any]]) -> str:
    return ", ".join(f"{c['name']} {c['probability']:.2f}" for c in candidates)


def _answer(candidates: list[dict[str, Any]], decoys: list[Note]) -> str:
    """The headline; ``decoys`` are the notes about them."""
    but = " But a decoy, which can't be there, isn't off." * any(note.level != "good" for note in decoys)
    if not candidates:
        rest = ", or a decoy" * bool(decoys)
        return f"Every process is on or off by its prior{rest}: there was nothing to find out.{but}"
    on, undecided = ([c for c in candidates if c["status"] == name] for name in ("on", "undecided"))
    total, num_on, num_undecided = (sum(c["count"] for c in rows) for rows in (candidates, on, undecided))
    if total == num_undecided == 1:
        return f"The data don't decide about the one candidate process: {_numbers(undecided)}.{but}"
    if num_on == total:
        which = {1: "The one candidate process is", 2: "Both candidate processes are"}
        text = which.get(total, f"All {_word(total)} candidate processes are")
    elif total == 1:
        text = "The one candidate process isn't"
    else:
        verb = "is" if num_on <= 1 else "are"
        count = _word(num_on).capitalize() if on else "None"
        text = f"{count} of {_word(total)} candidate processes {verb}"
    text += " in these data" + (f": {_numbers(on)}" if on else "")
    if undecided:
        verb = "is" if num_undecided == 1 else "are"
        text += f"; {_word(num_undecided)} {verb} undecided: {_numbers(undecided)}"
    return f"{text}.{but}"


def _convergence(
    table: pd.DataFrame, engines: list[str], lp_r_hat: float, num_chains: int, num_draws: int | None
) -> tuple[Note, str]:
    """Whether the engines' answer has settled; and the same in a few words."""
    if "gibbs" not in engines:
        engine = engines[0]
        name, both = NAMES[engine], ",".join([*engines, "gibbs"])
        text = f"Only {name} was run. {ALONE[engine]}; a Gibbs run (--engine {both}) would check the gates."
        return Note("caution", text), f"This is {name}'s answer alone; no sampler has checked it."
    if num_chains == 1:
        text = (
            "One Gibbs chain was run, and one chain can't tell whether it has converged; set GIBBS.num_chains to 2 or "
            "more."
        )
        return Note("caution", text), "One chain can't tell whether it has converged."
    r_hat, _ = worst_convergence(table, "gibbs")
    if np.isnan(r_hat):
        text = "The Gibbs run is too short to compare its chains; raise GIBBS.num_samples."
        return Note("caution", text), "The run is too short to check."
    both = f"largest R-hat of a gate {r_hat:.3f}" + ("" if np.isnan(lp_r_hat) else f", of the log joint {lp_r_hat:.2f}")
    if len(rows := disagreements(table, "gibbs")):
        names = [str(name) for name in rows.latent]
        text = (
            f"The chains disagree about {chains_apart(rows)}: one chain alone would have said another thing ({both}). "
            "Raise GIBBS.num_warmup and GIBBS.num_samples."
        )
        verb = "that isn't" if len(names) == 1 else "these aren't"
        return Note("bad", text), f"The chains disagree about {listed(names)}, so {verb} settled."
    if lp_r_hat > LARGEST_LOG_JOINT_R_HAT:
        text = (
            "The chains agree about every gate, but sit in different modes of the rest: the R-hat of the log joint is "
            f"{lp_r_hat:.2f}, above {LARGEST_LOG_JOINT_R_HAT}. Believe which processes are there more than H, shares "
            "and bands, which are averages over those modes. Often the dictionary is short of a process, or learnt "
            "noise lets each chain follow some outputs closely and leave others."
        )
        return Note("caution", text), "The chains agree on that, though not on how the outputs load on them."
    chains = f"The {_word(num_chains)} chains agree" if num_chains else "The chains agree"
    if num_draws is not None and num_draws < FEWEST_DRAWS:
        text = f"{chains} over {num_draws} draws of each ({both}). So few are a preview; rely on a whole run only."
        return Note("caution", text), "The chains agree over a short run."
    return Note("good", f"{chains} ({both})."), "The chains agree."


def _engines_note(table: pd.DataFrame, engines: list[str], differences: Mapping[str, float | None]) -> list[Note]:
    if len(engines) != 2:
        return []
    first, second = (_whole(table, engine).set_index("latent").probability for engine in engines)
    names = [NAMES.get(engine, engine) for engine in engines]
    # SVI's learnt scales may take equal covariances apart: only what both have.
    difference = (first - second).abs().dropna()
    if len(difference) == 0:
        return []
    apart = difference[difference > LARGEST_ENGINE_DIFFERENCE].index
    predictive = differences.get("predictive mean") or 0.0
    if len(apart) == 0 and predictive > LARGEST_PREDICTIVE_DIFFERENCE:
        text = (
            f"{listed(names)} agree about the gates, but not about the outputs: their predictions differ by up to "
            f"{predictive:.2f} sds of the bands. Believe the sampler's; {_why_apart(engines)}."
        )
        return [Note("caution", text)]
    if len(apart) == 0:
        return [Note("good", f"{listed(names)} agree: no probability differs by more than {difference.max():.2f}.")]
    which = [f"{name} ({first[name]:.2f} and {second[name]:.2f})" for name in apart]
    text = f"{listed(names)} differ about {listed(which)}: {_why_apart(engines)}."
    return [Note("caution", text)]


def _why_apart(engines: list[str]) -> str:
    return " and ".join(
        {
            "svi": "SVI settles in one mode, and may have stopped too early",
            "vb": "VB holds gates, weights and loadings apart",
        }[e]
        for e in engines
        if e != "gibbs"
    )


def _decoys(table: pd.DataFrame, engine: str) -> list[Note]:
    """A decoy is a latent that its user calls one: it can't be there, so what it explains is something else's."""
    rows = table[(table.engine == engine) & (table.members == 1) & table.latent.map(is_decoy)]
    found = {"on": ("bad", "is on"), "undecided": ("caution", "is not ruled out")}
    meaning = "a decoy that comes on is a sign of a dictionary short of a process, or of too little noise."
    off = rows[rows.probability <= OFF]
    named = listed([f"{row.latent} {row.probability:.2f}" for row in off.itertuples()])
    quiet = f"{'The decoy is' if len(off) == 1 else 'Decoys are'} off, as {'it' if len(off) == 1 else 'they'} should be"
    return [Note("good", f"{quiet}: {named}.")] * (len(off) > 0) + [
        Note(level, f"{row.latent} {is_there} ({row.probability:.2f}): {meaning}")
        for row in rows[rows.probability > OFF].itertuples()
        for level, is_there in [found[status(row.probability)]]
    ]
