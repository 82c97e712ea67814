"""Which of these processes are really behind my series? GP-ALPS in NumPyro."""

from alps_ppl.covariances import linear_periodic, on_column
from alps_ppl.gibbs import ALPSGibbs
from alps_ppl.model import ALPS
from alps_ppl.svi import fit_svi
