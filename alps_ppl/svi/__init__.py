"""Stochastic variational inference (paper, section 3 and App. B).

``temperature``: the schedule of the concrete gates (B.7). ``guide``: the structured mean-field family (B.1), and
where each term of its ELBO is computed (B.2 to B.5). ``likelihood``: the expected log likelihood (B.2) in closed form.
``inducing``: where inducing inputs start, and whether they suffice. ``optimisation``: the compiled steps on the ELBO
(B.6). ``fit``: ``fit_svi``. ``posterior``: the fit that it returns.
"""
