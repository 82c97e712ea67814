"""For the API page: text that follows a docstring's parameters, at the margin again, is a section of its own."""

import re
from typing import Any

import griffe


class TextAfterParameters(griffe.Extension):
    """NumPy's style has no text after a section but another section, so such text becomes "Notes"."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Put the header where it is missing, and write Sphinx's roles and colons as Markdown does."""
        if obj.docstring:
            text = re.sub(r":class:`(\w+)`", r"`\1`", obj.docstring.value).replace("::\n\n", ":\n\n")
            start = re.search(r"^Parameters\n-+\n", text, re.M)
            after = start and re.compile(r"(?<=\n\n)(?=\S)(?!\w+\n(?:-+\n| ))(?![\w, ]+\n    )").search(
                text, start.end()
            )
            obj.docstring.value = f"{text[: after.start()]}Notes\n-----\n{text[after.start() :]}" if after else text
