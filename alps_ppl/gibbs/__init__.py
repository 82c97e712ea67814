"""The Gibbs sampler (paper, App. C).

``layout``: the weights' order. ``features`` (by ``pivots``) and ``statespace``: latents as weights of low rank, or as
Markov states. ``families``: those of an unknown scale. ``statistics``: the data, once (beside private memories by
``whitening``), and their ``products`` at given weights; ``streaming``: the statistics of a table that is too long to
hold, by ``row_sums``. ``gaussians`` (by ``block_tridiagonal``) and ``conditionals``: the conditionals C.1 to C.3 and
those with a block integrated out. ``moves``, ``handover``, ``shears``, ``scales`` and ``student``: what a ``sweep``
does to its ``target``, with numbers of ``randomness``. ``kernel``: for NumPyro's ``MCMC``. ``chains``: ``fit_gibbs``.
``posterior``: its draws.
"""
