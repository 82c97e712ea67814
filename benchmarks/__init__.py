"""How fast alps_ppl is: ``python -m benchmarks [import] [svi] [gibbs] [weather] [cold]``; not installed."""
