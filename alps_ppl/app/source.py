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


class Source(ast.NodeTransformer):
    """Text with named holes. A file's or a column's name enters the source through a hole and no other way."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def hole(self, held: Any, kind: str = "value") -> str:
        """A name for the literal of ``held``: text, numbers, or lists, tuples and dicts; or for a comment, a remark."""
        self.held.append(held)
        return f"{kind}_{len(self.held) - 1}"

    def filled(self, skeleton: str) -> str:
        """The skeleton with its holes filled. Raises a ValueError unless Python reads exactly that from it."""
        written = {"value": literal, "remark": comment}
        text = HOLE.sub(lambda hole: written[hole[1]](self.held[int(hole[2])]), skeleton)
        try:
            # As bytes: then a declared encoding counts, as it does for a file.
            meant = ast.dump(self.visit(ast.parse(skeleton))) == ast.dump(ast.parse(text.encode("utf-8")))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            meant = False
        if not meant:
            raise ValueError("model file: expected names and settings that Python can write as literals")
        return text

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A hole's value in its place; a ValueError for one without a literal."""
        if not (hole := HOLE.fullmatch(node.id)):
            return node
        found = ast.parse(repr(self.held[int(hole[2])]), mode="eval").body
        ast.literal_eval(found)
        return found


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
    private_memory: bool = False,
    svi: dict[str, Any],
    gibbs: dict[str, Any],
) -> str:
    """The source of a model file for a table; a ValueError if Python would read anything else from it.

    ``reading``, ``splitting`` and ``arguments`` are those of ``read_table``, ``split_table`` and ``ALPS``; ``unit`` is
    that of the times, by its short name. ``latents`` are (name, covariance as the grammar writes it, remark). ``noise``
    is a variance, or an inverse gamma's concentration and rate; ``private_memory`` whether outputs have one.
    """
    source = Source()
    imports = ["import numpyro.distributions as dist"] if isinstance(noise, tuple) else []
    imports += ["from tinygp import kernels"] if any("kernels." in covariance for _, covariance, _ in latents) else []
    skeleton = TEMPLATE.format(
        title=f"Which of {len(latents)} processes are behind {len(outputs)} output{'s' * (len(outputs) != 1)} of FILE?",
        unit=f" in {UNITS[unit]}" if unit else " in the unit of the file's times",
        imports="".join(f"{line}\n" for line in imports) + "\n" * bool(imports),
        file=source.hole(str(file)),
        outputs=_listed(source, outputs),
        reading=_keywords(source, reading),
        splitting=_keywords(source, splitting),
        latents="".join(
            f"        # {source.hole(remark, 'remark')}\n        {source.hole(name)}: {covariance},\n"
            for name, covariance, remark in latents
        ),
        arguments="".join(f"        {key}={source.hole(value)},\n" for key, value in arguments.items()),
        memory="        private_memory=alps.private_memory(data.train_inputs),\n" if private_memory else "",
        noise=f"dist.InverseGamma{noise!r}" if isinstance(noise, tuple) else repr(noise),
        svi=source.hole(svi),
        gibbs=source.hole(gibbs),
    )
    return source.filled(skeleton)


def _keywords(source: Source, arguments: Mapping[str, Any]) -> str:
    """Keyword arguments after others; their names are this package's."""
    return "".join(f", {key}={source.hole(value)}" for key, value in arguments.items())


def _listed(source: Source, names: Sequence[str]) -> str:
    """A list, one name a line where they are many."""
    holes = [source.hole(name) for name in names]
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
    return alps.ALPS(
        latents,
        data.outputs,
{arguments}        noise_variance={noise},
{memory}    )


SVI = {svi}
GIBBS = {gibbs}
'''
