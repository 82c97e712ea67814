"""GPyTorch's linear model of coregionalisation: its tutorial's variational strategy, likelihood, optimiser and rate.

The tutorial has 16 inducing points for a smooth function and 500 steps of Adam; here are 60, for 150 to 600 times, and
the dictionary's covariances, which its batch of kernels takes once they are one kernel.
"""

import gpytorch
import numpy as np
import torch
from gpytorch.variational import CholeskyVariationalDistribution, LMCVariationalStrategy, VariationalStrategy

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Dictionary(gpytorch.kernels.Kernel):
    """Of each latent its own covariance, a batch of cosines and of Matérn-1/2."""

    def __init__(self, periods, memories):
        super().__init__(batch_shape=torch.Size([len(periods) + len(memories)]))
        self.periods, self.memories = (torch.tensor(v)[:, None, None] for v in (periods, memories))

    def forward(self, x1, x2, diag=False, **kwargs):
        """The Gram matrices, or their diagonals."""
        apart = (x1 - x2)[..., 0][..., None, :] if diag else x1 - x2.mT
        apart = apart.expand(*self.batch_shape, *apart.shape[-2:])
        cut = len(self.periods)
        parts = torch.cos(2 * np.pi * apart[:cut] / self.periods), torch.exp(-apart[cut:].abs() / self.memories)
        found = torch.cat(parts)
        return found[..., 0, :] if diag else found


class LMC(gpytorch.models.ApproximateGP):
    """The tutorial's model."""

    def __init__(self, inducing, kernel, num_tasks):
        (num_latents,) = batch = kernel.batch_shape
        of_each = CholeskyVariationalDistribution(inducing.size(-2), batch_shape=batch)
        strategy = VariationalStrategy(self, inducing, of_each, learn_inducing_locations=True)
        super().__init__(LMCVariationalStrategy(strategy, num_tasks, num_latents, latent_dim=-1))
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean(batch_shape=batch), kernel

    def forward(self, x):
        """The latents' prior."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def fit(train_inputs, train_y, test_inputs, dictionary):
    """Means and sds of y."""
    periods = np.repeat(np.unique(dictionary["periods"]), dictionary["copies"])
    kernel = Dictionary(periods, np.array(dictionary["memories"], float))
    x, y = torch.tensor(train_inputs)[:, None], torch.tensor(train_y)
    inducing = torch.linspace(x.min(), x.max(), 60)[:, None].repeat(*kernel.batch_shape, 1, 1)
    model = LMC(inducing, kernel, y.shape[1])
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=y.shape[1])
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.1)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    with gpytorch.settings.observation_nan_policy("fill"):
        for _ in range(500):
            optimizer.zero_grad()
            loss = -bound(model(x), y)
            loss.backward()
            optimizer.step()
    model.eval(), likelihood.eval()
    with torch.no_grad():
        found = likelihood(model(torch.tensor(test_inputs)[:, None]))
        return found.mean.numpy(), found.variance.sqrt().numpy()
