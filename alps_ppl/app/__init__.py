"""The command line: what it reads (``model_file``, ``compose``), runs (``run``) and writes.

A ``Problem`` is data, a model and settings. It comes from a model file or from ``alps-ppl fit``'s options, is checked
once, fitted by ``run``, scored beside ``baselines``, and written by ``outputs`` and ``figures``; ``report`` makes the
page of a folder. ``backtest`` fits a model up to several earlier ends of a table; ``backtest_run`` is its command.
``calibrate`` fits tables that are ``simulated`` in the shape of one.
``programs`` keeps compiled programs for the next run.
"""
