"""The Gibbs sampler (paper, App. C).

``features`` and ``statespace``: latents as weights of low rank, or as Markov states. ``statistics``: the data, once.
``gaussians`` and ``conditionals``: the conditionals C.1 to C.3 and those with a block integrated out. ``moves`` and
``sweep``: what a sweep does. ``kernel``: for NumPyro's ``MCMC``. ``chains``: ``fit_gibbs``. ``posterior``: its draws.
"""
