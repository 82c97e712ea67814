"""``weather``: New York's weather, two of whose latents have states at 600 times."""

from benchmarks.gibbs import sweeps
from benchmarks.svi import fit
from benchmarks.timing import load, progress, show

PROTOTYPE_MS = 92
SWEEPS = {"num_warmup": 2, "num_samples": 10}
SVI_STEPS = 100


def run():
    """A few sweeps with 1 and with 4 vectorized chains, and SVI steps with the file's settings."""
    _, model, inputs, y = load("nyc_weather")
    rows = []
    for num_chains in (1, 4):
        progress(f"Gibbs sweeps on the weather, {num_chains} chain(s)")
        row = sweeps(model, inputs, y, num_chains=num_chains, **SWEEPS)
        rows.append({name: value for name, value in row.items() if not name.startswith("worst")})
    title = f"weather: {len(model.latents)} latents, {len(inputs)} times, {len(model.outputs)} outputs, 64-bit"
    show(f"{title}, Gibbs", rows, f"a prototype took {PROTOTYPE_MS} ms / sweep and chain")
    progress("SVI steps on the weather")
    show(f"{title}, SVI", [fit("nyc_weather", num_steps=SVI_STEPS)])
