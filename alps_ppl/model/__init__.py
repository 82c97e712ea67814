"""The generative program and what it is made of.

``alps``: the program beside the paper's eq. 2, from ``arguments`` that are checked once. ``covariances`` and
``processes``: k(t, t'), GP(0, k) and the guide's sparse process, with their KL; ``walks``: what doesn't come back to a
mean. ``memory``: what an output does for
itself. ``scales``: lengthscales and periods that aren't known; ``unknown``: the part of ``ALPS`` that has them.
``draws``: the draws that every engine gives a prediction. ``as_json``: a model in plain data.
"""
