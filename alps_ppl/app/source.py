"""The model file that ``alps-ppl fit`` writes. A user's text enters it as literals and comments, and is read back.

File, column and latent names may hold anything, quotes and line breaks too, and the file will be run one day.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alps_ppl.tables.durations import UNITS

HOLE = re.compile(r"\b(value|remark)_(\d+)\b")


class Source:
    """Text with named holes. A file's or a column's name enters the source through a hole and no other way."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.remarks: list[str] = []

    def value(self, value: Any) -> str:
        """The name of a hole for the literal of ``value``: text, a number, or lists, tuples and dicts of them."""
        self.values.append(value)
        return f"value_{len(self.values) - 1}"

    def remark(self, text: str) -> str:
        """The name of a hole for ``text`` in a comment."""
        self.remarks.append(text)
        return f"remark_{len(self.remarks) - 1}"

    def filled(self, skeleton: str) -> str:
        """The skeleton with its holes filled. Raises a ValueError unless Python reads exactly that from it."""
        text = HOLE.sub(self._filling, skeleton)
        try:
            # As bytes: then a declared encoding counts, as it does for a file.
            meant = self._is_meant(ast.parse(skeleton), ast.parse(text.encode("utf-8")))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            meant = False
        if not meant:
            raise ValueError("model file: expected names and settings that Python can write as literals")
        return text

    def _filling(self, hole: re.Match) -> str:
        number = int(hole[2])
        return literal(self.values[number]) if hole[1] == "value" else comment(self.remarks[number])

    def _is_meant(self, skeleton: Any, found: Any) -> bool:
        """Whether ``found`` is the skeleton's tree with the values in its holes, and nothing else."""
        if isinstance(skeleton, ast.Name) and (hole := HOLE.fullmatch(skeleton.id)):
            # ``repr`` tells 1, 1.0 and True apart.
            return repr(ast.literal_eval(found)) == repr(self.values[int(hole[2])])
        if type(skeleton) is not type(found):
            return False
        if isinstance(skeleton, ast.AST):
            fields = skeleton._fields
            return all(self._is_meant(getattr(skeleton, f, None), getattr(found, f, None)) for f in fields)
        if isinstance(skeleton, list):
            return len(skeleton) == len(found) and all(map(self._is_meant, skeleton, found))
        return skeleton == found


def literal(value: Any) -> str:
    """``value`` in Python; text in double quotes, as the formatter writes it, where it has none itself.

    >>> print(literal(["u", 'the "v"', 1.5]))
    ["u", 'the "v"', 1.5]
    """
    if isinstance(value, str):
        return '"' + repr("'" + value)[2:] if '"' not in value else repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)


def comment(text: str) -> str:
    """``text`` on one line, without characters that no one sees: an editor or Python may take one for a line's end."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def model_file(
    file: Path,
    outputs: Sequence[str],
    *,
    reading: Mapping[str, Any],
    splitting: Mapping[str, Any],
    unit: str | None,
    latents: Sequence[tuple[str, str, str]],
    arguments: Mapping[str, Any],
    noise: float | tuple[float, float],
    svi: dict[str, Any],
    gibbs: dict[str, Any],
) -> str:
    """The source of a model file for a table; a ValueError if Python would read anything else from it.

    ``reading``, ``splitting`` and ``arguments`` are those of ``read_table``, ``split_table`` and ``ALPS``; ``unit`` is
    that of the times, by its short name. ``latents`` are (name, covariance as the grammar writes it, remark). ``noise``
    is a variance, or an inverse gamma's concentration and rate.
    """
    source = Source()
    imports = ["import numpyro.distributions as dist"] if isinstance(noise, tuple) else []
    imports += ["from tinygp import kernels"] if any("kernels." in covariance for _, covariance, _ in latents) else []
    skeleton = TEMPLATE.format(
        title=f"Which of {len(latents)} processes are behind {len(outputs)} output{'s' * (len(outputs) != 1)} of FILE?",
        unit=f" in {UNITS[unit]}" if unit else " in the unit of the file's times",
        imports="".join(f"{line}\n" for line in imports) + "\n" * bool(imports),
        file=source.value(str(file)),
        outputs=_listed(source, outputs),
        reading=_keywords(source, reading),
        splitting=_keywords(source, splitting),
        latents="".join(
            f"        # {source.remark(remark)}\n        {source.value(name)}: {covariance},\n"
            for name, covariance, remark in latents
        ),
        arguments=_keywords(source, arguments),
        noise=f"dist.InverseGamma{noise!r}" if isinstance(noise, tuple) else repr(noise),
        svi=source.value(svi),
        gibbs=source.value(gibbs),
    )
    return source.filled(skeleton)


def _keywords(source: Source, arguments: Mapping[str, Any]) -> str:
    """Keyword arguments after others; their names are this package's."""
    return "".join(f", {key}={source.value(value)}" for key, value in arguments.items())


def _listed(source: Source, names: Sequence[str]) -> str:
    """A list, one name a line where they are many."""
    holes = [source.value(name) for name in names]
    if len(literal(list(names))) <= 100:
        return f"[{', '.join(holes)}]"
    return "[\n" + "".join(f"    {hole},\n" for hole in holes) + "]"


TEMPLATE = '''"""{title}

Written by ``alps-ppl fit``, and a file to go on with: change it, and ``alps-ppl run`` it.
Periods and lengthscales are{unit}; H and the noise variance are those of standardised outputs.
"""

from pathlib import Path

{imports}import alps_ppl as alps

FILE = Path({file})
OUTPUTS = {outputs}


def data() -> alps.Data:
    """The table, sorted by time; what is held out or ahead of its end isn't seen by the fit."""
    table = alps.read_table(FILE{reading}, outputs=OUTPUTS)
    return alps.split_table(table{splitting})


def model(data: alps.Data) -> alps.ALPS:
    """A gate for each process."""
    latents = {{
{latents}    }}
    return alps.ALPS(latents, data.outputs{arguments}, noise_variance={noise})


SVI = {svi}
GIBBS = {gibbs}
'''
