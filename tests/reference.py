"""Slow, obviously right versions of the package's numerics: loops, enumerations, the dense joint.

Nothing here uses the package but the covariances that a model holds, evaluated pair by pair.
"""

import functools
import itertools

import jax
import numpy as np
from scipy import integrate, stats


def gram(covariance, t1, t2):
    """K[a, b] = k(t1[a], t2[b]), one pair at a time."""
    return _gram(covariance, tuple(np.asarray(t1, float).tolist()), tuple(np.asarray(t2, float).tolist())).copy()


@functools.lru_cache
def _gram(covariance, t1, t2):
    evaluate = jax.jit(covariance.evaluate)
    return np.array([[float(evaluate(np.asarray(a), np.asarray(b))) for b in t2] for a in t1])


def f_covariance(covariances, H, b, t1, t2):
    """Cov[f_i(t), f_k(t')] as (time * output, time * output), outputs fastest, by the definition."""
    H, b = np.asarray(H, float), np.asarray(b, float)
    total = 0.0
    for j, covariance in enumerate(covariances):
        h = H[:, j] * b[j]
        total = total + np.kron(gram(covariance, t1, t2), np.outer(h, h))
    return total


def observed_cells(y):
    return np.flatnonzero(~np.isnan(np.asarray(y)).ravel())


def log_evidence(covariances, H, b, noise_variance, t, y, own=None):
    """Log p(Y | H, b, sigma^2): the dense joint normal of all observed cells.

    ``own``: each output's C_i (time, time) of a private memory, the identity without one.
    """
    y = np.asarray(y, float)
    seen = observed_cells(y)
    K = f_covariance(covariances, H, b, t, t)
    for i, variance in enumerate(np.broadcast_to(noise_variance, len(H))):
        only = np.zeros((len(H), len(H)))
        only[i, i] = variance
        K = K + np.kron(np.eye(len(t)) if own is None else own[i], only)
    return stats.multivariate_normal(cov=K[np.ix_(seen, seen)]).logpdf(y.ravel()[seen])


def condition(covariances, H, b, noise_variance, t, y, t_new):
    """Mean and variance of f at new times, (time, output) each, given H and b: dense Gaussian conditioning."""
    y = np.asarray(y, float)
    seen = observed_cells(y)
    noise = np.diag(np.tile(noise_variance, len(t)))
    K = (f_covariance(covariances, H, b, t, t) + noise)[np.ix_(seen, seen)]
    cross = f_covariance(covariances, H, b, t_new, t)[:, seen]
    mean = cross @ np.linalg.solve(K, y.ravel()[seen])
    covariance = f_covariance(covariances, H, b, t_new, t_new) - cross @ np.linalg.solve(K, cross.T)
    shape = (len(t_new), np.shape(H)[0])
    return mean.reshape(shape), np.diag(covariance).reshape(shape)


def gate_posterior(covariances, H, noise_variance, inclusion_prob, t, y):
    """P(b | Y, H) for all 2^m gate vectors, and E[b_j | Y, H]."""
    vectors = list(itertools.product((0, 1), repeat=len(covariances)))
    logs = np.array(
        [
            log_evidence(covariances, H, b, noise_variance, t, y)
            + sum(np.log(p if on else 1 - p) for on, p in zip(b, inclusion_prob, strict=True))
            for b in vectors
        ]
    )
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return dict(zip(vectors, weights, strict=True)), weights @ np.array(vectors)


def log_joint(covariances, t, y, *, x, b, H, noise_variance, inclusion_prob, mixing_variance, noise_prior=None):
    """Log p(Y, x, b, H, sigma^2), term by term, in loops."""
    total = 0.0
    for j, covariance in enumerate(covariances):
        total += stats.multivariate_normal(cov=gram(covariance, t, t)).logpdf(x[j])
        total += np.log(inclusion_prob[j] if b[j] else 1 - inclusion_prob[j])
    for i in range(len(H)):
        for j in range(len(b)):
            total += stats.norm(0, np.sqrt(mixing_variance[i][j])).logpdf(H[i][j])
        if noise_prior is not None:
            total += stats.invgamma(noise_prior[0], scale=noise_prior[1]).logpdf(noise_variance[i])
        for n in range(len(t)):
            if not np.isnan(y[n][i]):
                f = sum(H[i][j] * b[j] * x[j][n] for j in range(len(b)))
                total += stats.norm(f, np.sqrt(noise_variance[i])).logpdf(y[n][i])
    return total


def sparse_marginals(covariance, t, z, m, S, jitter):
    """The paper's App. B.2 for one latent, with K_zz inverted: A m and diag(K~ + A S A^T)."""
    K_zz = gram(covariance, z, z)
    K_zz = K_zz + jitter * np.trace(K_zz) / len(z) * np.eye(len(z))
    K_cz = gram(covariance, t, z)
    A = K_cz @ np.linalg.inv(K_zz)
    full = gram(covariance, t, t) - A @ K_cz.T + A @ S @ A.T
    return A @ m, np.diag(full)


def gaussian_kl(m, S, K):
    """KL[N(m, S) || N(0, K)], as printed in App. B.4."""
    return 0.5 * (
        np.trace(np.linalg.solve(K, S))
        + m @ np.linalg.solve(K, m)
        - len(m)
        + np.linalg.slogdet(K)[1]
        - np.linalg.slogdet(S)[1]
    )


def posterior_mean_of_f(covariances, H, noise_variance, inclusion_prob, t, y, t_new):
    """E[f | Y, H] at new times, (time, output): every gate vector's mean, by its probability."""
    probabilities, _ = gate_posterior(covariances, H, noise_variance, inclusion_prob, t, y)
    return sum(prob * condition(covariances, H, b, noise_variance, t, y, t_new)[0] for b, prob in probabilities.items())


def quadrature_posterior(covariances, s, noise_variance, inclusion_prob, t, y, t_new, num_nodes=40):
    """E[b_j | Y] and the mean and variance of f at new times for one output and two latents, H integrated out.

    Gauss-Legendre over 0 < h_j < 6 prior sds: neither b nor f depends on the sign of an h.
    """
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    sds = np.sqrt(np.asarray(s, float).ravel())
    h, log_density = 3 * (nodes + 1), np.log(weights) - 0.5 * (3 * (nodes + 1)) ** 2
    K, cross, new = ([gram(c, *pair) for c in covariances] for pair in ((t, t), (t_new, t), (t_new, t_new)))
    y = np.asarray(y, float).ravel()
    seen = ~np.isnan(y)
    logs, means, variances, gates = [], [], [], []
    for b in itertools.product((0, 1), repeat=2):
        log_prior = sum(np.log(p if on else 1 - p) for on, p in zip(b, inclusion_prob, strict=True))
        # A closed gate's h is not in the likelihood: one node stands for all.
        grids = [range(num_nodes) if on else [None] for on in b]
        for pair in itertools.product(*grids):
            log_weight, loads = log_prior, [0.0, 0.0]
            for j, node in enumerate(pair):
                if node is not None:
                    loads[j] = (h[node] * sds[j]) ** 2
                    log_weight += log_density[node] + np.log(3 * np.sqrt(2 / np.pi))
            total = loads[0] * K[0] + loads[1] * K[1] + noise_variance * np.eye(len(t))
            star = (loads[0] * cross[0] + loads[1] * cross[1])[:, seen]
            total = total[np.ix_(seen, seen)]
            solved = np.linalg.solve(total, np.column_stack([y[seen], star.T]))
            log_weight -= 0.5 * (y[seen] @ solved[:, 0] + np.linalg.slogdet(2 * np.pi * total)[1])
            logs.append(log_weight)
            means.append(star @ solved[:, 0])
            prior_variance = np.diag(loads[0] * new[0] + loads[1] * new[1])
            variances.append(prior_variance - (star * solved[:, 1:].T).sum(1))
            gates.append(b)
    probabilities = np.exp(logs - np.max(logs))
    probabilities /= probabilities.sum()
    mean = probabilities @ np.array(means)
    variance = probabilities @ (np.array(variances) + np.array(means) ** 2) - mean**2
    return probabilities @ np.array(gates), mean, variance


def own_covariance(share, lengthscale, t1, t2, factors=1.0):
    """C(t, t') = rho exp(-|t - t'| / l) + (1 - rho) v where it is the same row, one pair at a time (``t1 is t2``)."""
    memory = [[share * np.exp(-abs(a - b) / lengthscale) for b in t2] for a in t1]
    return np.array(memory) + (1 - share) * np.eye(len(t1), len(t2)) * (t1 is t2) * factors


def innovations(e, variance, own, t):
    """(e_t - E[e_t | earlier ones]) / sd by dense conditioning, one cell at a time; ``own`` is C (time, time)."""
    e, order, z = np.asarray(e, float), np.argsort(t, kind="stable"), np.full(len(e), np.nan)
    seen = []
    for k in (k for k in order if not np.isnan(e[k])):
        K, cross = variance * own[np.ix_(seen, seen)], variance * own[k, seen]
        gain = np.linalg.solve(K, cross) if seen else cross
        z[k] = (e[k] - gain @ e[seen]) / np.sqrt(variance * own[k, k] - gain @ cross)
        seen.append(k)
    return z


def factor_posterior(grid, log_prior, e, share, lengthscale, t):
    """p(v | e) of every combination of noise factors, (combination, cell) and (combination,)."""
    combinations = np.array(list(itertools.product(range(len(grid)), repeat=len(t))))
    logs = []
    for points in combinations:
        C = own_covariance(share, lengthscale, t, t, np.asarray(grid)[points])
        logs.append(np.sum(log_prior[points]) - 0.5 * (np.linalg.slogdet(C)[1] + e @ np.linalg.solve(C, e)))
    weights = np.exp(logs - np.max(logs))
    return combinations, weights / weights.sum()


def vb_bound(basis, owner, gate_of, q, prior, own, y, noise):
    """The bound of a mean-field q whose factors are conditional on their gate, densely and gate by gate.

    ``basis`` is Phi (time, feature). ``q`` has ``prob`` (gate,), and per gate ``w``, a mean and covariance, and ``h``,
    those of each output. ``prior`` has ``theta`` and ``s`` (output, latent); ``own`` are the C of each output at each
    point of the memory's grid with its log prior, ``noise`` an InverseGamma's shape and rate.
    """
    num_gates, num_outputs = len(q["prob"]), y.shape[1]
    members = [np.flatnonzero(gate_of == g) for g in range(num_gates)]
    features = [np.flatnonzero(gate_of[owner] == g) for g in range(num_gates)]
    total = 0.0
    for i in range(num_outputs):
        seen = ~np.isnan(y[:, i])
        mean, square = [], []
        for g in range(num_gates):
            w, W = q["w"][g]
            h, Hc = q["h"][g][i]
            spread = (owner[features[g]][:, None] == members[g]).astype(float)
            phi = basis[np.ix_(seen, features[g])]
            mean.append(phi @ (w * (spread @ h)))
            ww, hh = W + np.outer(w, w), spread @ (Hc + np.outer(h, h)) @ spread.T
            square.append(phi @ (ww * hh) @ phi.T)
        logs = []
        for C, log_prior in own[i]:
            C = C[np.ix_(seen, seen)]
            squares = 0.0
            for b in itertools.product([0, 1], repeat=num_gates):
                weight = np.prod([p if on else 1 - p for p, on in zip(q["prob"], b, strict=True)])
                on = [g for g in range(num_gates) if b[g]]
                f = sum([mean[g] for g in on], np.zeros(seen.sum()))
                ff = np.outer(f, f) + sum([square[g] - np.outer(mean[g], mean[g]) for g in on], np.zeros_like(C))
                e = y[seen, i]
                squares += weight * np.trace(np.linalg.solve(C, np.outer(e, e) - 2 * np.outer(f, e) + ff))

            def density(s2, C=C, squares=squares):
                log_lik = -0.5 * (len(C) * np.log(2 * np.pi * s2) + np.linalg.slogdet(C)[1] + squares / s2)
                return np.exp(log_lik) * stats.invgamma(noise[0], scale=noise[1]).pdf(s2)

            logs.append(log_prior + np.log(integrate.quad(density, 0, np.inf)[0]))
        total += np.log(np.exp(logs).sum())
    for g, (prob, theta) in enumerate(zip(q["prob"], prior["theta"], strict=True)):
        total -= prob * np.log(prob / theta) + (1 - prob) * np.log((1 - prob) / (1 - theta))
        total -= prob * gaussian_kl(*q["w"][g], np.eye(len(features[g])))
        for i in range(num_outputs):
            total -= prob * gaussian_kl(*q["h"][g][i], np.diag(prior["s"][i, members[g]]))
    return total


def expected_log_likelihood(x_mean, x_variance, H_mean, H_variance, b, log_noise, y):
    """E[log p(y | x, H, b, sigma^2)] cell by cell: Gauss-Hermite quadrature over x, H and log sigma^2, all normal.

    x (latent, time), H (output, latent), b (latent,); ``log_noise`` has the mean and the sd of log sigma^2, (output,)
    each. Three nodes are exact for the square, of degree two in each variable.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    noise_nodes, noise_weights = np.polynomial.hermite_e.hermegauss(40)
    weights, noise_weights = weights / weights.sum(), noise_weights / noise_weights.sum()
    total = 0.0
    for t, i in zip(*np.nonzero(~np.isnan(y)), strict=True):
        # Of every combination of nodes for this cell's x_1 .. x_m and H_i1 .. H_im, f and its weight.
        f, weight = np.zeros(1), np.ones(1)
        for j in range(len(b)):
            x = x_mean[j, t] + np.sqrt(x_variance[j, t]) * nodes
            h = H_mean[i, j] + np.sqrt(H_variance[i, j]) * nodes
            f = np.add.outer(f, b[j] * np.outer(x, h)).ravel()
            weight = np.multiply.outer(weight, np.outer(weights, weights)).ravel()
        sd = np.exp(0.5 * (log_noise[0][i] + log_noise[1][i] * noise_nodes))
        total += weight @ stats.norm.logpdf(y[t, i], f[:, None], sd) @ noise_weights
    return total
