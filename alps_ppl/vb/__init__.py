"""The third engine: a mean-field family whose factors are conditional on their gate, by coordinate ascent.

``family`` is q and its bound, ``updates`` the closed-form updates, ``search`` the starts and moves between modes,
``evidence`` the gates' last update, ``fit`` the function, ``posterior`` what it returns. docs/vb.md derives all.
"""
