"""Pictures of a run's page for the docs: ``python -m experiments.page_pictures``, some three minutes.

Sixteen days of four sensors are made anew, with two days on which all were out, a test and a forecast, and fitted. The
page is then photographed by Chromium at a desk's and a phone's width, light and dark, into docs/report*.png.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import numpy as np
import pandas as pd
from PIL import Image
from scipy.signal import lfilter

DOCS = Path(__file__).parents[1] / "docs"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
DESK, PHONE = 1280, 390
DAY = 2 * np.pi / 24
OPTIONS = [
    "--time", "time", "--latent", "daily = linear_periodic(24h)", "--latent", "memory x 3 = matern12(1d..8d)",
    "--latent", "rough = matern12(6h)", "--decoys", "1", "--hold-out", "1d", "--forecast", "1d",
    "--set", "GIBBS.num_warmup=500", "--set", "GIBBS.num_samples=1000", "--no-progress",
]  # fmt: skip
# A page says where its sections are and how high it is.
MEASURE = """<script>addEventListener('load', () => parent.postMessage({
  height: document.documentElement.scrollHeight,
  tops: Object.fromEntries([...document.querySelectorAll('h2')].map(e => [e.innerText, e.offsetTop]))
}, '*'))</script>"""


def sensors(seed: int = 41) -> pd.DataFrame:
    """Hours of four sensors in one unit: a daily cycle late in some, a shared slow memory, memories of their own."""
    rng = np.random.default_rng(seed)
    hours = np.arange(16 * 24)

    def memory(lengthscale: float) -> np.ndarray:
        decay = np.exp(-1 / lengthscale)
        return lfilter([np.sqrt(1 - decay**2)], [1, -decay], rng.normal(size=len(hours) + 1000))[1000:]

    slow = memory(96)
    columns = {
        "roof": 18 + 3 * np.sin(DAY * (hours - 9)) + 1.5 * slow + 0.8 * memory(10),
        "lab": 21 + 1.5 * np.sin(DAY * (hours - 12)) - slow + 0.5 * memory(10),
        "yard": 12 + 2 * np.sin(DAY * (hours - 9)) + 0.5 * slow + 0.6 * memory(10),
        "cellar": 14 + 0.4 * np.sin(DAY * (hours - 15)) + 0.8 * slow + 0.3 * memory(10),
    }
    stamps = pd.date_range("2025-05-01", periods=len(hours), freq="h", name="time")
    table = pd.DataFrame(columns, stamps) + 0.4 * rng.normal(size=(len(hours), 4))
    table = table.mask(rng.random(table.shape) < 0.02).round(2)
    table.iloc[7 * 24 : 9 * 24] = np.nan  # all were out
    table.iloc[100:118, 1] = np.nan  # one was
    return table


class Camera:
    """Photographs of a page, which needs nothing else; ``folder`` is for its working files."""

    def __init__(self, page: Path, folder: Path):
        found = next(filter(None, map(shutil.which, CHROMIUM)), None)
        if found is None:
            raise click.UsageError(f"expected one of {', '.join(CHROMIUM)} on the PATH, to photograph the page")
        self.chromium, self.folder = found, folder
        text = page.read_text(encoding="utf-8")
        (folder / "page.html").write_text(text.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")

    def whole(self, width: int, dark: bool) -> tuple[Image.Image, dict[str, int]]:
        """The whole page at a width, and where its sections begin."""
        title = self._chromium(width, 900, dark, "--dump-dom")
        found = re.search(r"<title>(.*?)</title>", title)
        if found is None:
            raise RuntimeError("Chromium said nothing of the page's height")
        measured = json.loads(found[1])
        self._chromium(width, measured["height"], dark, f"--screenshot={self.folder / 'shot.png'}")
        with Image.open(self.folder / "shot.png") as image:
            return image.convert("RGB").crop((0, 0, width, measured["height"])), measured["tops"]

    def _chromium(self, width: int, height: int, dark: bool, what: str) -> str:
        # A window isn't narrower than 500 pixels, a frame is.
        (self.folder / "frame.html").write_text(
            "<!DOCTYPE html><title></title><style>body { margin: 0 } iframe { border: 0; display: block }</style>"
            "<script>addEventListener('message', e => { document.title = JSON.stringify(e.data) })</script>"
            f"<iframe src='page.html' style='width: {width}px; height: {height}px'></iframe>"
        )
        command = [self.chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={self.folder / 'profile'}", "--virtual-time-budget=5000"]
        command += [
            f"--window-size={max(width, 500)},{height}",
            f"--blink-settings=preferredColorScheme={int(not dark)}",
        ]
        command += [what, f"file://{self.folder / 'frame.html'}"]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def columns(image: Image.Image, number: int, space: int = 24) -> Image.Image:
    """A long picture as columns beside each other."""
    height = -(-image.height // number)
    paper = Image.new("RGB", ((image.width + space) * number - space, height), "#888888")
    for k in range(number):
        part = image.crop((0, k * height, image.width, min((k + 1) * height, image.height)))
        paper.paste(Image.new("RGB", (image.width, height), image.getpixel((0, 0))), (k * (image.width + space), 0))
        paper.paste(part, (k * (image.width + space), 0))
    return paper


def save(image: Image.Image, path: Path) -> None:
    """With a palette, rare colours in it, too: the file is a third."""
    image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    click.echo(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def photograph(page: Path, out: Path) -> None:
    """The pictures of a page, ``out``/report*.png."""
    with tempfile.TemporaryDirectory() as folder:
        camera = Camera(page, Path(folder))
        light, tops = camera.whole(DESK, dark=False)
        save(light.crop((0, 0, DESK, tops["The cycles"] - 20)), out / "report.png")
        dark, tops = camera.whole(DESK, dark=True)
        middle = dark.crop((0, tops["The outputs"] - 10, DESK, tops["Can this be believed?"] - 20))
        save(middle, out / "report_dark.png")
        for name, is_dark in (("report_phone", False), ("report_phone_dark", True)):
            save(columns(camera.whole(PHONE, is_dark)[0], 6), out / f"{name}.png")


@click.command()
@click.option("--page", type=click.Path(path_type=Path, exists=True), help="Only photograph this page of such a run.")
def main(page: Path | None):
    """Make the table, fit it, and write the pictures of its page."""
    if page is not None:
        return photograph(page, DOCS)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        sensors().to_csv(work / "sensors.csv")
        for arguments in (["fit", "sensors.csv", *OPTIONS, "--out", "sensors"], ["report", "sensors"]):
            subprocess.run([sys.executable, "-m", "alps_ppl", *arguments], check=True, cwd=work)
        photograph(work / "sensors" / "report.html", DOCS)


if __name__ == "__main__":
    main(prog_name="python -m experiments.page_pictures")
