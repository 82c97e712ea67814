"""Two folders of results beside each other: by how much do their numbers differ?

``python -m experiments.compare BEFORE AFTER`` prints, for every table that a run writes, engine and column, the largest
difference. A refactoring that changes no number leaves zeros, or round-off.
"""

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pandas as pd

TABLES = ("inclusion", "predictions", "scores", "variance_shares", "comparison")


def differences(before: Path, after: Path) -> Iterator[dict]:
    """Per table, engine and column of numbers: the largest absolute difference, and the column's largest number."""
    for name in TABLES:
        paths = [folder / f"{name}.csv" for folder in (before, after)]
        if not any(path.exists() for path in paths):
            continue
        first, second = (pd.read_csv(path) for path in paths)
        words = first.columns[~first.dtypes.map(pd.api.types.is_numeric_dtype)]
        if list(first.columns) != list(second.columns) or not first[words].equals(second[words]):
            raise click.ClickException(f"{name}.csv: its columns or rows aren't the same in both folders")
        engine = first["engine"] if "engine" in first else pd.Series("both", first.index)
        for (of, rows), column in ((group, c) for group in first.groupby(engine) for c in first.columns.drop(words)):
            a, b = (frame.loc[rows.index, column].to_numpy(float) for frame in (first, second))
            missing = np.isnan(a) != np.isnan(b)
            yield {"table": name, "engine": of, "column": column, "missing in one": int(missing.sum())} | {
                "largest difference": np.nanmax(np.abs(a - b), initial=0.0),
                "largest number": np.nanmax(np.abs(a), initial=0.0),
            }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(before: Path, after: Path):
    """Print by how much the numbers of two runs differ."""
    click.echo(pd.DataFrame(differences(before, after)).to_string(index=False, float_format="{:.2g}".format))


if __name__ == "__main__":
    main(prog_name="python -m experiments.compare")
