"""How a file writes its numbers: its decimal sign, and what groups thousands, from the cells or as its user says."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

# What may group thousands besides the comma and the period: a space, two kinds of it that don't break, apostrophes.
SPACES = " \u00a0\u202f\u2009'\u2019"
SIGNS = {".": ",", ",": "."}
FIRST = 20_000
NUMBER = r"[-+]?(?:\d+|\d*[.,]\d+|\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?)(?:[eE][-+]?\d+)?"


class NumberFormat(NamedTuple):
    """The decimal sign, and the signs that group thousands."""

    decimal: str = "."
    thousands: str = ""

    def plain(self, text: str) -> str:
        """A cell's text as Python writes numbers, if it is a number; 1_000 is none: a code or a date, perhaps."""
        text = text.strip()
        if "_" in text:
            return "no number"
        for sign in self.thousands:
            if re.fullmatch(_grouped(sign, re.escape(self.decimal)), text):
                text = text.replace(sign, "")
                break
        return text.replace(self.decimal, ".") if self.decimal != "." and "." not in text else _no_period(text, self)


def _no_period(text: str, form: NumberFormat) -> str:
    return "no number" if form.decimal != "." and "." in text else text


def _grouped(sign: str, decimal: str) -> str:
    return rf"[-+]?[1-9]\d{{0,2}}(?:{re.escape(sign)}\d{{3}})+(?:{decimal}\d*)?"


def number_format(raw: pd.DataFrame, decimal: str | None = None, thousands: str | None = None) -> NumberFormat:
    """The format of a file's cells, from the first 20,000 of each column.

    Of a comma and a period in numbers the second one of a cell is the decimal sign. So is a sign that a cell has with
    other than three digits behind it. A sign with three digits behind it wherever it is may be either: it groups
    thousands where smaller whole numbers of the column have none, and a comma does in a file separated by commas.
    Raises a ValueError that names a cell where that doesn't decide.

    ``raw`` has text, numbers and missing cells, and the file's separator in its attrs; ``decimal`` and ``thousands``
    are what the user says.
    """
    columns = {name: [c.strip() for c in cells.head(FIRST) if isinstance(c, str)] for name, cells in raw.items()}
    joined = {name: "\0".join(cells) for name, cells in columns.items()}
    spaces = "".join(
        s for s in SPACES if any(s in t and re.search(_alone(_grouped(s, "[.,]")), t) for t in joined.values())
    )
    if decimal is not None or thousands is not None:
        decimal = decimal or ("," if thousands == "." else ".")
        if decimal not in SIGNS or (thousands and (len(thousands) > 1 or thousands not in f",.{SPACES}")):
            raise ValueError(
                f"expected a comma or a period as the decimal sign and a comma, a period, a space, an apostrophe or "
                f"nothing between thousands, got {decimal!r} and {thousands!r}"
            )
        if decimal == thousands:
            raise ValueError(f"expected another sign between thousands than the decimal sign, got {decimal!r} for both")
        return NumberFormat(decimal, spaces if thousands is None else thousands)
    separator = raw.attrs.get("separator", ",")
    if separator != ";" and not any("," in text for text in joined.values()):
        return NumberFormat(".", spaces)
    evidence = {sign: {name: _evidence(cells, sign) for name, cells in columns.items()} for sign in SIGNS}
    if separator == ",":
        _refuse_mixed(columns)
    for sign, other in SIGNS.items():
        if "decimal" in evidence[sign].values() and "thousands" not in evidence[sign].values():
            groups = {"thousands", "either"} & set(evidence[other].values())
            return NumberFormat(sign, spaces + (other if groups else ""))
    for sign, other in SIGNS.items():
        found = set(evidence[sign].values())
        if "thousands" in found or ("either" in found and sign == separator):
            return NumberFormat(other, spaces + sign)
    for sign, by_name in evidence.items():
        for name in (name for name, here in by_name.items() if here == "either"):
            cell = next(cell for cell in columns[name] if sign in cell)
            raise ValueError(
                f"column {name!r}: is {cell!r} a thousand and more, or a number with three decimals? Name the sign "
                f"that groups thousands, {sign!r} or '', or the decimal sign"
            )
    return NumberFormat(".", spaces)


def _refuse_mixed(columns: dict[str, list[str]]) -> None:
    """Of a file separated by commas: a column of which most commas group thousands, and some can't."""
    for name, cells in columns.items():
        having = [cell for cell in cells if "," in cell and re.fullmatch(NUMBER, cell)]
        odd = [cell for cell in having if not re.fullmatch(_grouped(",", r"\."), cell)]
        if odd and 2 * len(odd) < len(having):
            raise ValueError(
                f"column {name!r}: most of its commas group thousands, but not that of {odd[0]!r}; mend that cell, or "
                "name the decimal sign"
            )


def _alone(pattern: str) -> str:
    """A cell of its own between two NULs."""
    return rf"(?<![^\0]){pattern}(?![^\0])"


def _evidence(cells: Iterable[str], sign: str) -> str:
    """What a column's cells say of a sign: "decimal", "thousands", "either", or "" where no number has it."""
    mark, other = re.escape(sign), re.escape(SIGNS[sign])
    numbers = [cell for cell in cells if re.fullmatch(NUMBER, cell)]
    having = [cell for cell in numbers if sign in cell]
    if not having:
        return ""
    grouped = [cell for cell in having if re.fullmatch(rf"[-+]?\d{{1,3}}(?:{mark}\d{{3}})+(?:{other}\d+)?", cell)]
    if any(cell.count(sign) > 1 or SIGNS[sign] in cell for cell in grouped):
        return "thousands"
    if any(not re.fullmatch(rf"[-+]?[1-9]\d{{0,2}}{mark}\d{{3}}", cell) for cell in having):
        return "decimal"
    whole = [cell for cell in numbers if re.fullmatch(r"[-+]?\d{1,3}", cell)]
    longer = any(re.fullmatch(r"[-+]?\d{4,}", cell) for cell in numbers)
    return "thousands" if whole and not longer else "either"


def column_numbers(cells: pd.Series, form: NumberFormat) -> np.ndarray:
    """A column's cells as floats, to the last digit as Python reads them; NaN for what is missing or no number."""
    if pd.api.types.is_bool_dtype(cells) or pd.api.types.is_datetime64_any_dtype(cells):
        return np.full(len(cells), np.nan)
    if pd.api.types.is_numeric_dtype(cells):
        return cells.to_numpy(float, na_value=np.nan)
    values = cells.to_numpy(object)
    if form != NumberFormat() or any("_" in cell for cell in values if isinstance(cell, str)):
        values = cells.map(lambda c: form.plain(c) if isinstance(c, str) else c, na_action="ignore").to_numpy(object)
    try:
        return values.astype(float)
    except (TypeError, ValueError):
        return np.array([_number(value) for value in values], float)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan
