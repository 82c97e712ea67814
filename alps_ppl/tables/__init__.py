"""Files and tables of series, and what is said of them as text.

- ``durations``: "24h", "4d" in the unit of a table's times, and the name that reads best for a length of time.
- ``dates``: dates and durations as hours or days; the one place where dates are recognised and read.
- ``grammar``: "rbf(4d) * periodic(24h)" as a tinygp covariance.
- ``data``: ``Data``, a table with its held-out cells and its standardisation; ``Conversion``, the way back.
- ``cells``: a CSV or Parquet file's cells as they are written; ``number_format`` and ``stamps``: numbers and times from
  them; ``spikes``: those that stand out; ``reading``: the series of a file, by time.
- ``splitting``: a table's last stretch, held out; ``horizons``: the times ahead of its end.
- ``growth``: outputs whose swings grow with their level.
- ``proposals``: the processes that ``--latent auto`` proposes, and decoys; ``red_noise``: what a sine explains
  beside it where stamps lack.
- ``composing``: the model of a table that ``alps-ppl fit`` makes of its options.
"""
