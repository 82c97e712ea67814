"""The guide and the fit: the ELBO's terms, its bounds, gradients in float32, minibatches, awkward data, errors."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import reference
from numpyro import handlers
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.svi import SVIState
from problems import periods, sines
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.svi import fit as fit_module
from alps_ppl.svi.inducing import initial_inducing_inputs, unresolved
from alps_ppl.svi.optimisation import _spread, compiled, in_logit_space

# One model, one size and one number of steps wherever they will do: a fit of the same shapes compiles nothing.
MODEL = periods(noise_variance=0.1)
T, Y, F = sines()
STEPS = 2000
SETTINGS = {"num_inducing": 5, "num_steps": STEPS, "progress_bar": False}
Z = np.linspace(0, 39, 5)


def fit(model=MODEL, t=T, y=Y, **settings):
    return alps.fit_svi(model, t, y, **({"rng_key": jax.random.key(0)} | SETTINGS | settings))


@pytest.fixture(scope="module")
def fitted():
    return fit()


def mean_of_f(fitted):
    """E[f] at the times that were fitted, (time, output)."""
    draws = fitted.at(fitted.inputs)
    return np.asarray(draws.basis @ draws.gated_H.mean(0).T)


def program(model=MODEL, batch_size=None):
    return compiled(jax.tree.structure(model), 0.01, 1, batch_size, "sampled")


def first_params(model=MODEL):
    """The guide's parameters before the first step."""
    return program(model).svi.get_params(program(model).init(jax.random.key(0), {}, jnp.array(0.66), model, Z, T, Y))


@jax.jit
def terms(model, params, key, temperature):
    """The loss of the fit's own program and guide, site by site."""
    svi = program(model).svi
    loss = TraceMeanField_ELBO(sum_sites=False).loss
    return loss(key, params, svi.model, svi.guide, model, Z, T, Y, temperature=temperature)


# --- the ELBO's terms


def test_every_kl_but_the_gates_is_closed_form(key):
    """Those with a closed form don't change with the seed."""
    params = first_params()
    draws = [terms(MODEL, params, jax.random.fold_in(key, k), 0.66) for k in range(3)]
    varies = {name: bool(np.ptp([float(d[name]) for d in draws]) > 1e-12) for name in draws[0]}
    assert varies == {"x": False, "H": False, "b_base": True, "y": True}


def test_kl_of_the_mixing_matrix_is_the_papers(key):
    model, params = periods(noise_variance=0.1, mixing_variance=[0.5, 2.0]), first_params()
    s = model.mixing_variance
    m, sd = (np.sqrt(s) * np.asarray(params[name]) for name in ("H_loc", "H_scale"))  # they are in prior sds
    expected = (0.5 * np.log(s / sd**2) + (sd**2 + m**2) / (2 * s) - 0.5).sum()
    assert float(terms(model, params, key, 0.66)["H"]) == pytest.approx(expected, rel=1e-9)


def test_a_certain_gate_costs_no_kl(key):
    """In the relaxed loss, at any temperature and whatever the guide's logits."""
    model = periods(noise_variance=0.1, inclusion_prob=[0.0, 1.0])
    params = first_params() | {"b_logits": jnp.array([1.5, -2.0])}
    for temperature in (0.66, 10.0):
        assert float(terms(model, params, key, temperature)["b_base"]) == 0.0


def test_a_latent_that_is_never_on_leaves_the_elbo(fitted, key):
    """Its q(x) and q(H) at the prior, the ELBO is that of the model without it, within Monte Carlo error."""
    wider = periods(2, 7.0, 5.0, 3.0, inclusion_prob=[0.5, 0.5, 0.0], noise_variance=0.1)
    p, prior = fitted.params, {"x_loc": jnp.zeros((1, 5)), "x_scale_tril": jnp.eye(5)[None], "log_scale": jnp.zeros(1)}
    prior |= {"b_logits": jnp.full(1, 3.0)}
    params = p | {name: jnp.concatenate([p[name], value]) for name, value in prior.items()}
    params |= {"H_loc": jnp.pad(p["H_loc"], ((0, 0), (0, 1)))}
    params |= {"H_scale": jnp.pad(p["H_scale"], ((0, 0), (0, 1)), constant_values=1.0)}
    same = alps.SVIFit(wider, fitted.inputs, fitted.y, params, fitted.losses, fitted.temperatures)
    (elbo, mcse), (expected, other) = (alps.discrete_elbo(f, key) for f in (same, fitted))
    assert abs(elbo - expected) < 4 * np.hypot(mcse, other)


# --- the gates' gradient


def exact_gate_kl_gradient(logit, temperature):
    """d/dlogit KL[Logistic(logit/T, 1/T) || Logistic(0, 2)] by quadrature over the base noise, in float64.

    The entropy of q doesn't depend on the logit: what is left is E[tanh-like slope of -log p] / T.
    """
    u = (np.arange(400_000) + 0.5) / 400_000
    value = (logit + np.log(u) - np.log1p(-u)) / temperature
    return np.mean(0.5 * np.tanh(value / 4)) / temperature


def base_noise(n=20_000):
    u = jnp.asarray((np.arange(n) + 0.5) / n, jnp.float32)
    return jnp.log(u) - jnp.log1p(-u)


def test_gate_kl_gradient_in_float32():
    """Right to 1 %: of the very sites that SVI has, averaged over the same base noise."""

    def site(distribution):
        run = handlers.seed(in_logit_space(lambda: numpyro.sample("b", distribution)), 0)
        return handlers.trace(run).get_trace()["b_base"]["fn"]

    def kl(logit, temperature):
        q = site(dist.RelaxedBernoulliLogits(temperature, logit))
        p = site(dist.RelaxedBernoulliLogits(0.5, jnp.float32(0.0)))
        value = q.loc + q.scale * base_noise()
        return (q.log_prob(value) - p.log_prob(value)).mean()

    logits = np.array([-40.0, -12.0, -3.0, 0.5, 5.0, 12.0, 40.0])
    with jax.enable_x64(False):
        gradients = jax.jit(jax.vmap(jax.grad(kl), (0, None)))
        for temperature in (0.1, 0.66, 2.0, 10.0):
            found = gradients(jnp.asarray(logits), jnp.asarray(temperature))
            expected = [exact_gate_kl_gradient(logit, temperature) for logit in logits]
            assert found.dtype == jnp.float32
            np.testing.assert_allclose(found, expected, rtol=0.01)


def test_unit_interval_gradient_is_wrong_in_float32():
    """Why the gates are fitted in logit space: the clamped site's KL gradient has the wrong sign at logit 12."""

    def kl(logit):
        value = jax.nn.sigmoid((logit + base_noise()) / 0.66)
        value = jnp.clip(value, jnp.finfo(jnp.float32).tiny, 1 - jnp.finfo(jnp.float32).eps)
        q, p = dist.RelaxedBernoulliLogits(0.66, logit), dist.RelaxedBernoulliLogits(0.5, jnp.float32(0.0))
        return (q.log_prob(value) - p.log_prob(value)).mean()

    with jax.enable_x64(False):
        gradient = float(jax.jit(jax.grad(kl))(jnp.float32(12.0)))
    assert exact_gate_kl_gradient(12.0, 0.66) == pytest.approx(0.757, abs=0.01)
    assert gradient < 0


def test_logits_of_forty_are_finite(fitted, key):
    """The gradient of the relaxed loss at the temperatures' extremes, and the discrete ELBO."""
    params = fitted.params | {"b_logits": jnp.array([40.0, -40.0])}
    gradient = jax.jit(jax.grad(lambda params, temperature: sum(terms(MODEL, params, key, temperature).values())))
    for temperature in (0.1, 0.66, 10.0):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(params, temperature)))
    sure = alps.SVIFit(MODEL, fitted.inputs, fitted.y, params, fitted.losses, fitted.temperatures)
    assert np.isfinite(alps.discrete_elbo(sure, key)[0])
    np.testing.assert_allclose(sure.inclusion_prob, [1, 0], atol=1e-15)


# --- the bound


@pytest.mark.slow
def test_the_bound_closes_as_inducing_inputs_grow(key):
    """Gates and H held (both certain): the best ELBO is below the exact evidence and reaches it at l = n.

    With H held by conditioning, q(X^z) alone is optimised, in closed form.
    """
    rng = np.random.default_rng(4)
    n = 12
    t = np.linspace(0, 6, n)
    y = (np.sin(t) + 0.2 * rng.normal(size=n))[:, None]
    H = jnp.array([[1.0, 0.7]])
    covariances = {"a": kernels.ExpSquared(scale=1.0), "b": kernels.Exp(scale=3.0)}
    model = alps.ALPS(covariances, inclusion_prob=1.0, noise_variance=0.1)
    exact = reference.log_evidence(model.covariances, H, [1, 1], model.noise_variance, t, y)
    gaps = {}
    for num_inducing in (3, 6, n):
        z = t if num_inducing == n else initial_inducing_inputs(t, num_inducing)
        elbo = held_elbos(model, H, t, y, z, key)
        mcse = elbo.std() / np.sqrt(len(elbo))
        gaps[num_inducing] = exact - elbo.mean()
        assert elbo.mean() < exact + 5 * mcse
    assert gaps[3] > gaps[6] > gaps[n] - 5 * mcse
    # Mean field over two latents: at l = n what is left is the posterior's correlation between them.
    assert gaps[n] < 0.25 * gaps[3]


def test_the_bound_of_one_latent_is_tight_at_every_input(key):
    """With one latent there is nothing mean field about q(X): at l = n the bound is the evidence."""
    t = np.linspace(0, 6, 10)
    y = np.sin(t)[:, None]
    model = alps.ALPS({"a": kernels.Exp(scale=2.0)}, inclusion_prob=1.0, noise_variance=0.1)
    H = jnp.array([[1.3]])
    elbo = held_elbos(model, H, t, y, t, key)
    exact = reference.log_evidence(model.covariances, H, [1], model.noise_variance, t, y)
    assert abs(elbo.mean() - exact) < 4 * elbo.std() / np.sqrt(len(elbo)) + 1e-5


def held_elbos(model, H, t, y, z, key):
    """Draws of the ELBO's terms of x and y at the best q(X^z), those of the held sites left out."""
    m = len(model.latents)
    loc, tril = optimal_q(model, H, t, y, z)
    params = {
        "inducing_inputs": jnp.asarray(z), "x_loc": loc, "x_scale_tril": tril, "log_scale": jnp.zeros(m),
        "b_logits": jnp.zeros(m), "H_loc": H, "H_scale": jnp.full((1, m), 1e-9),
    }  # fmt: skip
    loss, guide = TraceMeanField_ELBO(sum_sites=False).loss, alps.StructuredMeanField(model, z)
    draws = jax.lax.map(
        lambda k: loss(k, params, model.program, guide.discrete, t, y), jax.random.split(key, 8_000), batch_size=500
    )
    return -np.asarray(draws["y"] + draws["x"])


def optimal_q(model, H, t, y, z):
    """The best Gaussian q(X^z) that factorises over the latents, whitened, by coordinate ascent in closed form."""
    noise = float(model.noise_variance[0])
    A = []
    for covariance in model.covariances:
        K = reference.gram(covariance, z, z)
        K += 1e-8 * np.trace(K) / len(z) * np.eye(len(z))
        A.append(np.linalg.solve(np.linalg.cholesky(K), reference.gram(covariance, z, t)).T)
    means = [np.zeros(len(z)) for _ in A]
    for _ in range(500):
        for j, a in enumerate(A):
            rest = y[:, 0] - sum(float(H[0, k]) * A[k] @ means[k] for k in range(len(A)) if k != j)
            h = float(H[0, j])
            P = np.eye(len(z)) + h**2 / noise * a.T @ a
            means[j] = np.linalg.solve(P, h / noise * a.T @ rest)
    trils = [
        np.linalg.cholesky(np.linalg.inv(np.eye(len(z)) + float(H[0, j]) ** 2 / noise * a.T @ a))
        for j, a in enumerate(A)
    ]
    return jnp.asarray(np.stack(means)), jnp.asarray(np.stack(trils))


@pytest.mark.slow
def test_the_discrete_elbo_bounds_the_exact_evidence(oracle, exact_model, key):
    """The fit's discrete ELBO is below the oracle's log evidence, and above that of noise alone."""
    o = oracle("alps_exact")
    prior = {"b00": 0.5 * 0.7, "b10": 0.5 * 0.7, "b01": 0.5 * 0.3, "b11": 0.5 * 0.3}
    evidence = np.logaddexp.reduce([o["log_evidence"][b] + np.log(prior[b]) for b in prior])
    found = fit(exact_model, o["t"], o["y"], num_inducing=10, rng_key=key)
    assert found.elbo < evidence + 4 * found.elbo_mcse
    assert found.elbo > o["log_evidence"]["b00"]
    assert found.inclusion_prob[1] > 0.9


# --- the fit


def test_a_fit_finds_the_period(fitted):
    assert fitted.inclusion_prob[0] > 0.95
    assert fitted.inclusion_prob[1] < 0.2
    assert len(fitted.losses) == len(fitted.temperatures) == STEPS
    assert np.isfinite(fitted.losses).all()
    assert abs(mean_of_f(fitted) - F).max() < 0.2
    assert fitted.model is MODEL
    np.testing.assert_array_equal(fitted.inputs, T)
    np.testing.assert_array_equal(fitted.y, Y)
    assert repr(fitted).startswith("SVIFit(elbo=")


def test_samples_are_draws_of_q(fitted):
    """Gates by rho, and x, which isn't kept, of the guide's marginals."""
    samples = fitted.samples
    assert {name: value.shape for name, value in samples.items()} == {
        "x": (1, 1000, 2, 40),
        "b": (1, 1000, 2),
        "H": (1, 1000, 2, 2),
    }
    assert all(40 not in value.shape for value in samples._sites.values())
    x, marginals = np.asarray(samples["x"][0]), fitted.at(fitted.inputs)
    assert (abs(x.mean(0) - marginals.basis.T) < 6 * np.sqrt(marginals.latent_variance / 1000)).all()
    np.testing.assert_array_equal(samples["x"], samples["x"])
    rho = fitted.inclusion_prob
    np.testing.assert_allclose(samples["b"][0].mean(0), rho, atol=6 * 0.5 / np.sqrt(1000))
    np.testing.assert_array_equal(fitted.sample_stats["gate_prob"], np.broadcast_to(rho, (1, 1000, 2)))


def missing():
    """Scattered cells, a whole row."""
    y = Y.copy()
    y[[2, 9], [0, 1]] = y[20] = np.nan
    return T, y, F


def twice():
    """Every other time, twice, unsorted; the second values are higher by .2."""
    order = np.random.default_rng(1).permutation(40)
    return np.tile(T[::2], 2)[order], np.r_[Y[::2], Y[::2] + 0.2][order], np.tile(F[::2] + 0.1, (2, 1))[order]


@pytest.mark.parametrize("data", [missing, twice])
def test_awkward_data(data):
    t, y, f = data()
    assert abs(mean_of_f(fit(t=t, y=y)) - f).max() < 0.2


def test_an_output_without_a_cell_is_left_at_the_prior():
    y = Y.copy()
    y[:, 1] = np.nan
    H = np.asarray(fit(y=y).at(jnp.asarray(T)).gated_H[:, 1, 0])  # T=7 is on
    assert abs(H.mean()) < 0.2
    assert H.std() == pytest.approx(1.0, rel=0.2)


def far_times():
    return {"t": T + 1.6e9}, 1.0


def other_units(factor):
    variance = np.broadcast_to(factor, 2) ** 2
    return {"model": periods(mixing_variance=variance, noise_variance=0.1 * variance), "y": Y * factor}, factor


def other_memory():
    t, y = np.repeat(T, 2)[::2], np.asfortranarray(Y)
    t.flags.writeable = y.flags.writeable = False
    return {"t": t, "y": y}, 1.0


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [far_times(), other_units(1e8), other_units(np.array([1e-8, 1e-2])), other_memory()],
    ids=["unix seconds", "1e8", "a unit per output", "memory"],
)
def test_the_same_fit(arguments, factor, fitted):
    """An offset of the times, a unit whose variances follow, strided read-only arrays: nothing is rescaled."""
    again = fit(**arguments)
    np.testing.assert_allclose(again.inclusion_prob, fitted.inclusion_prob, atol=1e-3)
    np.testing.assert_allclose(mean_of_f(again) / factor, mean_of_f(fitted), atol=1e-3)


def test_next_to_no_noise_is_finite():
    """The data are one sine to 12 digits."""
    found = fit(periods(noise_variance=1e-12), y=F)
    assert np.isfinite(mean_of_f(found)).all()
    assert np.isfinite(found.losses).all()


@pytest.mark.slow
def test_learnt_noise():
    """Of an output that is a sine, and of one that is constant and has missing cells."""
    y = Y.copy()
    y[:, 1] = 0.0
    y[1:5, 1] = np.nan
    found = fit(periods(noise_variance=dist.InverseGamma(2.0, 0.02)), y=y)
    noise = np.asarray(found.at(jnp.asarray(T)).noise_variance)
    assert (np.isfinite(noise) & (noise > 0)).all()
    assert 0.004 < noise[:, 0].mean() < 0.03  # .01 was put in
    assert abs(mean_of_f(found)[:, 1]).max() < 0.1


def test_two_inducing_inputs_equal_at_the_start():
    """They may stay equal; the fit is finite all the same."""
    arguments = (MODEL, jnp.array([3.0, 3.0, 10.0, 17.0, 30.0]), jnp.asarray(T), jnp.asarray(Y))
    temperatures = np.full(STEPS, 0.66)
    state = program().init(jax.random.key(0), {}, jnp.array(0.66), *arguments)
    state, losses, _ = program().steps(state, jnp.zeros(STEPS), 0, STEPS, temperatures, *arguments)
    assert np.isfinite(losses).all()
    assert all(np.isfinite(leaf).all() for leaf in program().svi.get_params(state).values())


def test_inducing_inputs_start_spread():
    np.testing.assert_allclose(initial_inducing_inputs(np.arange(100.0), 10), 99 * (np.arange(10) + 0.5) / 10)
    columns = initial_inducing_inputs(np.stack([np.arange(50.0), np.ones(50), np.arange(50.0)], 1), 10)
    assert columns.shape == (10, 3)
    assert len(np.unique(columns[:, 2])) == 10
    assert not np.array_equal(columns[:, 0], columns[:, 2])


@pytest.mark.slow
def test_more_inducing_inputs_than_times():
    """At integer times, too, where rows of K_zz are nearly equal many times over."""
    latents = {"T=7": alps.linear_periodic(7.0), "smooth": kernels.ExpSquared(scale=10.0)}
    model = alps.ALPS(latents, 2, noise_variance=0.1)
    found = fit(model, T.astype(int), num_inducing=50, num_steps=200)
    assert np.isfinite(found.losses).all()
    assert np.isfinite(mean_of_f(found)).all()


@pytest.mark.slow
def test_never_always_and_nearly():
    """0 and 1 are never and always against the data, which hold T = 7 alone; 1e-8 and 1 - 1e-8 are finite."""
    prob = [0.0, 1.0, 1e-8, 1 - 1e-8]
    found = fit(periods(2, 7.0, 5.0, 3.0, 4.0, inclusion_prob=prob, noise_variance=0.5), y=Y)
    np.testing.assert_array_equal(found.inclusion_prob[:2], [0.0, 1.0])
    assert found.inclusion_prob[2] < 0.05
    assert found.inclusion_prob[3] > 0.95
    assert np.isfinite(found.losses).all()


@pytest.mark.slow
def test_four_equal_times():
    """Near E[f | y], by quadrature over h, as f | h is Gaussian: q is a mean field over h and x."""
    y, noise = np.array([0.5, 0.9, 0.7, 1.1]), 0.1
    h = np.linspace(-6, 6, 20_001)
    log_weight = -0.5 * h**2 - 0.5 * np.log(noise + 4 * h**2) + 0.5 * h**2 * y.sum() ** 2 / (noise * (noise + 4 * h**2))
    weight = np.exp(log_weight - log_weight.max())
    exact = (weight * h**2 * y.sum() / (noise + 4 * h**2)).sum() / weight.sum()
    model = alps.ALPS({"x": kernels.ExpSquared(scale=1.0)}, inclusion_prob=1.0, noise_variance=noise)
    np.testing.assert_allclose(mean_of_f(fit(model, np.ones(4), y)), exact, atol=0.1)


@pytest.mark.slow
def test_a_single_time():
    found = fit(periods(noise_variance=dist.InverseGamma(2.0, 0.02)), [3.0], [[1.0, np.nan]], num_steps=50)
    assert np.isfinite(mean_of_f(found)).all()
    assert np.isfinite(found.losses).all()


@pytest.mark.slow
@pytest.mark.parametrize("noise_variance", [0.1, 1e-9])
def test_float32(noise_variance):
    """Gates and f as in float64; too little noise is finite or an error with the remedy."""
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*enable_x64")
        try:
            found = fit(periods(noise_variance=noise_variance))
        except alps.NonFiniteLossError as error:
            assert "enable_x64" in str(error)  # noqa: PT017
            found = error.fit
        mean = mean_of_f(found)
    assert mean.dtype == found.losses.dtype == np.float32
    assert np.isfinite(mean).all()
    if noise_variance == 0.1:
        np.testing.assert_array_equal(found.inclusion_prob > 0.95, [True, False])
        assert abs(mean - F).max() < 0.2


def test_a_minibatch_takes_every_time_as_often(key):
    """Of 10 times and 4 stretches two times lie in two stretches each."""
    draws = jax.jit(jax.vmap(lambda k: _spread(k, 10, 4)))(jax.random.split(key, 20_000))
    assert (np.diff(draws) >= 0).all()
    counts = np.bincount(np.ravel(draws), minlength=10)
    # A time is in a minibatch with probability .4 at most twice: its count's variance is below .8 a draw.
    np.testing.assert_allclose(counts, 8_000, atol=5 * np.sqrt(0.8 * 20_000))
    np.testing.assert_array_equal(_spread(key, 7, 7), np.arange(7))


@pytest.mark.slow
def test_minibatches(fitted, key):
    """The period is found. A step's loss on ten random times of the 40 is unbiased: 5 MCSE over 1,000 keys.

    Where a step on a batch splits its key, it draws the gates and H with the first half.
    """
    found = fit(batch_size=10)
    assert found.inclusion_prob[0] > 0.9
    assert np.isfinite(found.losses).all()
    arguments, temperatures = (MODEL, Z, jnp.asarray(T), jnp.asarray(Y)), np.full(STEPS, 0.66)
    start = jax.tree.map(np.asarray, program().init(key, {}, jnp.array(0.66), *arguments).optim_state)

    def loss(batch_size, key):
        state = SVIState(start, None, key)
        steps = program(batch_size=batch_size).steps
        return float(steps(state, np.zeros(STEPS), 0, 1, temperatures, *arguments)[1][0])

    keys = jax.random.split(key, 1_000)
    whole = np.array([loss(None, key) for key in jax.vmap(jax.random.split)(keys)[:, 0]])
    difference = np.array([loss(10, key) for key in keys]) - whole
    mcse = difference.std() / np.sqrt(len(keys))
    assert abs(difference.mean()) < 5 * mcse
    assert mcse < 0.03 * abs(whole.mean())  # so that an error of scale would be seen


@pytest.mark.slow
def test_particles_and_an_optimizer():
    found = fit(num_particles=2, optimizer=optax.adam(optax.cosine_decay_schedule(0.02, STEPS)))
    assert found.inclusion_prob[0] > 0.95
    assert np.isfinite(found.losses).all()


@pytest.mark.slow
def test_a_large_learning_rate_is_finite_or_named():
    try:
        assert np.isfinite(mean_of_f(fit(learning_rate=100.0))).all()
    except alps.NonFiniteLossError as error:
        assert "smaller learning_rate (now 100.0)" in str(error)  # noqa: PT017


def test_a_non_finite_loss_stops_and_keeps_the_last_state():
    def bad(step, num_steps):
        return np.where(step < 120, 0.66, 1e-320)

    with pytest.raises(alps.NonFiniteLossError, match=rf"step 120 of {STEPS}.*learning_rate.*64-bit") as error:
        fit(temperature=bad)
    assert error.value.step == 120
    found = error.value.fit
    assert len(found.losses) == 120
    assert np.isfinite(found.losses).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params))


def test_restarts(monkeypatch):
    """One that fails is left out; the ELBOs of the others are compared by the same random numbers."""
    optimise, starts, keys = fit_module.optimise, [], []

    def first_fails(*arguments, **settings):
        starts.append(settings["name"])
        state, losses = optimise(*arguments, **settings)
        return state, losses[:50] if len(starts) == 1 else losses

    def recorded(found, key):
        keys.append(key)
        return alps.discrete_elbo(found, key)

    monkeypatch.setattr(fit_module, "optimise", first_fails)
    monkeypatch.setattr(fit_module, "discrete_elbo", recorded)
    with pytest.warns(RuntimeWarning, match=r"start 1 of 3 stopped at step 50 .*the other starts go on"):
        found = fit(num_restarts=3)
    assert len(starts) == 3
    assert np.isnan(found.restart_elbos[0])
    assert found.elbo == max(found.restart_elbos[1:])
    assert keys[0] == keys[1]


# --- NumPyro's own SVI, and errors


def test_the_discrete_program_given_to_svi_is_an_error(key):
    """That says what to do; the temperature is checked, too."""
    guide = alps.StructuredMeanField(MODEL, Z)
    svi = SVI(MODEL, guide, optax.adam(0.01), TraceMeanField_ELBO())
    for call in (
        lambda: svi.init(key, T, Y),
        lambda: svi.run(key, 5, T, Y, progress_bar=False),
        lambda: guide(T, Y),
    ):
        with pytest.raises(ValueError, match=r"no gradient\. Pass relaxed=True"):
            call()
    with pytest.raises(ValueError, match=r"temperature: .*-1"):
        guide(T, Y, relaxed=True, temperature=-1.0)


@pytest.mark.parametrize("in_logits", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_numpyros_own_svi(in_logits, key):
    """Takes the model and the guide as any, and the program and the guide in logit space."""
    program, guide = MODEL, alps.StructuredMeanField(MODEL, Z)
    if in_logits:
        program, guide = alps.relaxed_program(MODEL), in_logit_space(guide)
    svi = SVI(program, guide, optax.adam(0.01), TraceMeanField_ELBO())
    settings = {"relaxed": True} | ({"temperature": 0.66} if in_logits else {})  # the model itself takes none
    assert np.isfinite(jax.jit(lambda: svi.evaluate(svi.init(key, T, Y, **settings), T, Y, **settings))())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature: .*positive"),
        ({"temperature": np.nan}, "temperature: .*nan"),
        ({"temperature": lambda n, N: 1.0 - n / 5}, "temperature: .*positive"),
        ({"temperature": np.ones(9)}, r"temperature: .*one per step \(2000\)"),
        ({"num_steps": 0}, "num_steps: .*positive whole number"),
        ({"num_inducing": 2.5}, "num_inducing: .*whole number"),
        ({"batch_size": 41}, "batch_size: .*40 times"),
        ({"learning_rate": -1.0}, "learning_rate: .*positive"),
        ({"learning_rate": optax.constant_schedule(0.1)}, r"learning_rate: .*optax.adam\(schedule\)"),
        ({"optimizer": 0.1}, "optimizer: .*optax"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit(**settings)


def test_inducing_inputs_lie_where_the_times_are():
    """Two campaigns of a week, five years apart: half of them in each, and none in the gap."""
    times = np.r_[np.arange(168.0), 43_800 + np.arange(168.0)]
    z = np.asarray(initial_inducing_inputs(times, 20))
    assert ((z <= 168) | (z >= 43_800)).all()
    assert (z <= 168).sum() == 10


def test_too_few_inducing_inputs_are_a_warning_with_the_number_that_would_do():
    """Twenty for a memory of 5 in 80 times; what is left open is the Gram matrix' Schur complement."""
    t = jnp.arange(80.0)
    model = alps.ALPS(
        {"rough": kernels.Exp(scale=5.0), "wave": alps.linear_periodic(7.0), "white": alps.white()}, noise_variance=0.1
    )
    rough, white = unresolved(model, t, 20)
    z = initial_inducing_inputs(t, 20)
    gain = reference.gram(model.covariances[0], t, z) @ np.linalg.inv(reference.gram(model.covariances[0], z, z))
    left = 1 - np.einsum("tz,tz->t", gain, reference.gram(model.covariances[0], t, z)).mean()
    assert f"'rough': 20 inducing inputs leave {left:.0%} of its variance open" in rough
    assert "about 80 would resolve it (num_inducing=80)" in rough
    assert "'white'" in white
    assert "no number would do" in white
    assert unresolved(model.subset(["wave"]), t, 5) == []
    assert unresolved(model.subset(["rough"]), jnp.stack([t, t], 1), 5) == []
    with pytest.warns(UserWarning, match="20 inducing inputs leave"):
        alps.fit_svi(
            model.subset(["rough"]), t, jnp.ones((80, 1)), num_steps=1, rng_key=jax.random.key(0), progress_bar=False
        )


@pytest.mark.parametrize(("factor", "warns"), [(1e8, True), (1.0, False), (1e-8, True)])
def test_an_output_far_from_what_the_priors_expect_is_a_warning(factor, warns):
    y = factor * np.random.default_rng(0).normal(size=(20, 2))
    model = alps.ALPS({"wave": alps.linear_periodic(7.0)}, 2, noise_variance=0.1)
    with pytest.warns(UserWarning, match="has a variance of") if warns else contextlib.nullcontext():
        model.check_data(np.arange(20.0), y)
