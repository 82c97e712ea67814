"""What one does with a fit of either engine; every function takes the fit alone, since it knows its model and data.

``prediction``: outputs at new inputs. ``trees``: ArviZ trees, which everything below reads. ``inclusion``: how probable
the latents are, and whether the sampler knows it. ``engines``: two posteriors side by side. ``shares``: each latent's
part of an output's variance. ``cycles``: amplitudes and peaks. ``scales``: unknown scales, interchangeable processes.
``backtests``: forecasts from earlier ends. ``calibration``: fits of tables whose truth is known. ``selection``: other
priors, smaller models. ``files``: fits in files. ``plots``: figures.
"""
