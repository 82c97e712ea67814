"""What measures the paper's claims, and the pages made of it; run from the repository's root, not installed.

- ``synthetic``: 4.1, 4.2 and the temperature of App. B; ``boston``: 4.3 and App. A, with ``subsets``, the 8,192 kernel
  ridge regressions; ``own_data``: five tables that the paper doesn't have; ``baselines``: other people's forecasts.
- ``store``: the measured rows, in ``docs/claims/*.json``.
- ``claims`` and ``own_data`` write ``docs/claims.md`` and ``docs/own_data.md`` from the rows and ``*.md.j2``.
- ``page_pictures``: photographs of a run's page, for the docs.
- ``compare``: the numbers of two results folders beside each other.
"""
