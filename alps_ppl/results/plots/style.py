"""What all figures share: an engine has one colour and one name everywhere."""

COLOURS = {"svi": "#2166ac", "gibbs": "#d6604d", "vb": "#35978f"}
NAMES = {"svi": "SVI", "gibbs": "Gibbs", "vb": "VB"}


def colour_of(engine: str, place: int = 0) -> str:
    """The engine's, or that of its place among others."""
    return COLOURS.get(engine, f"C{place + 2}")


def name_of(engine: str) -> str:
    """The engine's, as figures write it."""
    return NAMES.get(engine, engine)
