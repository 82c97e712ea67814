"""The rows of finished tables in a file, from where a run of many tables goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alps_ppl.checkpoints import replacing

ROWS = "rows.jsonl"


class KeptRows:
    """A line for each finished table: a kill loses at most the line being written.

    ``digests`` say what each table's rows have to be of. What failed isn't finished.
    """

    def __init__(self, folder: Path, digests: Mapping[str, str]):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"folder: can't make {str(folder)!r}: {error.strerror}") from None
        self.path, self.digests = folder / ROWS, digests

    def read(self) -> list[dict[str, Any]]:
        """The rows that are there of these tables."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                kept = json.loads(line)
                name, digest, rows = kept["table"], kept["of"], kept["rows"]
            except (ValueError, TypeError, KeyError):  # the one that was being written
                continue
            if self.digests.get(name) == digest and not any(row["error"] for row in rows):
                found[name] = rows
        with replacing(self.path) as temporary:
            temporary.write_text("".join(self._line(rows) for rows in found.values()), encoding="utf-8")
        return [row for rows in found.values() for row in rows]

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Add finished tables' rows."""
        by_table: dict[str, list] = {}
        for row in rows:
            by_table.setdefault(row["table"], []).append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(map(self._line, by_table.values()))

    def _line(self, rows: list[dict[str, Any]]) -> str:
        name = rows[0]["table"]
        return json.dumps({"table": name, "of": self.digests[name], "rows": rows}, default=float) + "\n"
