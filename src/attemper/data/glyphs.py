"""A hundred characters drawn with the fonts that matplotlib ships: data that needs no download."""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ..checks import whole
from ..errors import ArgumentError, AttemperError
from ..files import whole_file
from .images import MemoryImages
from .source import Source

# No two of these look alike under a change of size: where small and capital letters or two alphabets share a shape,
# one of them stands for all.
CHARACTERS = (
    "123456789"
    "ABCDEFGHJKLMNOPQRSTUVWXYZ"
    "abdefghmnrt"
    "ΓΔΘΛΞΠΣΦΨΩαγδζλμξσω"
    "БДЖИЦЧШЫЭЮЯЂЉЊ"
    "&@#%?!+=*$€£¥§¶<>~{}()"
)  # fmt: skip
NOVEL = "ԱԲԳԴԵԶԸԹԺԻԽԾաբգդეზთილმნჟშאבגדהשת∀∂∃∇∈∏√∝∞∠∧∩∫≈≠≡⊂⊕⊗⊥⋄"
SPLITS = ("train", "test", "shifted", "novel", "noise")

FAMILIES = [
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
]  # fmt: skip
SHIFTED_FAMILIES = [
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta", "cmr10", "cmb10", "cmss10", "cmtt10",
]  # fmt: skip

# PIXELS: how many are drawn at once
STENCIL, FONT_SIZE, PIXELS = 64, 44, 4096 * 20 * 20
ROTATION, SHIFT, SCALES, INKS, NOISE = math.radians(10), 0.04, (0.8, 1.15), (0.7, 1.0), 0.08
LOOK = (STENCIL, FONT_SIZE, PIXELS, ROTATION, SHIFT, SCALES, INKS, NOISE)


def read(
    split: str, *, size: int = 20, classes: int = 100, per_class: int | None = None, seed: int = 0
) -> MemoryImages:
    """Glyphs of `size` x `size` pixels: `per_class` images (200 to train on, else 50) of each of `classes` characters.

    train and test: twelve faces of DejaVu. shifted: the same characters in STIX and Computer Modern. novel: characters
    of other scripts and mathematical signs, with classes of their own. noise: pixels drawn uniformly, one class.
    """
    if split not in SPLITS:
        raise ArgumentError("split", split, f"one of {', '.join(SPLITS)}")
    size, seed = whole("size", size, 8, 256), whole("seed", seed, 0)
    classes = whole("classes", classes, 2, len(CHARACTERS))
    per_class = whole("per_class", per_class) if per_class is not None else 200 if split == "train" else 50

    names = {"novel": tuple(NOVEL), "noise": ("noise",)}.get(split, tuple(CHARACTERS[:classes]))
    count = per_class * (classes if split == "noise" else len(names))
    labels = torch.arange(count) % len(names)
    recipe = [LOOK, torch.__version__, split, size, names, count, seed]
    images = _cached(recipe, count, size)
    if images is None:
        generator = torch.Generator().manual_seed(_number(recipe[2:]))
        if split == "noise":
            images = torch.randint(0, 256, (count, 1, size, size), dtype=torch.uint8, generator=generator)
        else:
            images = _draw(names, SHIFTED_FAMILIES if split == "shifted" else FAMILIES, labels, size, generator)
        _keep(recipe, images)
    return MemoryImages("glyphs", split, images, labels, names)


def _draw(names: Sequence[str], faces: Sequence[str], labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Labels (n,) -> uint8 images (n, 1, size, size), each from a stencil of a face that has the character."""
    stencils, first, faces_of = _stencils(names, faces)
    n = len(labels)
    uniform = torch.rand(n, 6, generator=generator)
    stencil = first[labels] + (uniform[:, 0] * faces_of[labels]).long()
    angle = (2 * uniform[:, 1] - 1) * ROTATION
    zoom = 1 / (SCALES[0] + (SCALES[1] - SCALES[0]) * uniform[:, 2])
    shift = (2 * uniform[:, 3:5] - 1) * 2 * SHIFT
    ink = INKS[0] + (INKS[1] - INKS[0]) * uniform[:, 5]
    rotation = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(n, 2, 2)
    affine = torch.cat([rotation, shift[:, :, None]], 2) * zoom[:, None, None]

    images = torch.empty(n, 1, size, size, dtype=torch.uint8)
    # torch draws normal numbers by sixteens: with whole ones the images do not hang on the chunks
    chunk = PIXELS // size**2 // 16 * 16
    for start in range(0, n, chunk):
        part = slice(start, start + chunk)
        # twice the pixels, then their means: a plain sampling would drop thin strokes
        shape = (len(affine[part]), 1, 2 * size, 2 * size)
        grid = functional.affine_grid(affine[part], list(shape), align_corners=False)
        drawn = functional.grid_sample(stencils[stencil[part]], grid, align_corners=False)
        drawn = functional.avg_pool2d(drawn, 2) * ink[part, None, None, None]
        noise = torch.randn(drawn.shape, generator=generator)
        images[part] = (drawn + NOISE * noise).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return images


def _stencils(names: Sequence[str], faces: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Stencils (s, 1, 64, 64) in [0, 1], by character; each character's first one, and how many it has."""
    import matplotlib
    import numpy as np
    from matplotlib.ft2font import FT2Font
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    drawn: list[list[Image.Image]] = [[] for _ in names]
    for face in faces:
        path = str(folder / f"{face}.ttf")
        font, known = ImageFont.truetype(path, FONT_SIZE), FT2Font(path).get_charmap()
        for images, name in zip(drawn, names, strict=True):
            # Computer Modern keeps letters and digits where Unicode has them, signs elsewhere
            if ord(name) not in known or (face.startswith("cm") and not (name.isascii() and name.isalnum())):
                continue
            image = Image.new("L", (STENCIL, STENCIL))
            left, top, right, bottom = font.getbbox(name)
            place = ((STENCIL - left - right) / 2, (STENCIL - top - bottom) / 2)
            ImageDraw.Draw(image).text(place, name, fill=255, font=font)
            images.append(image)
    stencils = (
        torch.from_numpy(np.stack([np.asarray(image) for images in drawn for image in images]))
        .float()
        .div_(255)[:, None]
    )
    faces_of = torch.tensor([len(images) for images in drawn])
    return stencils, faces_of.cumsum(0) - faces_of, faces_of


def cache_folder() -> Path:
    """Where drawn glyphs are kept: $ATTEMPER_CACHE, or attemper in the user's cache folder."""
    if given := os.environ.get("ATTEMPER_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attemper"


def _file(recipe: list[object]) -> Path:
    return cache_folder() / f"glyphs-{_number(recipe):016x}.safetensors"


def _number(recipe: list[object]) -> int:
    return int(hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:15], 16)


def _cached(recipe: list[object], count: int, size: int) -> Tensor | None:
    """The images drawn before by this recipe; None where there are none, or no whole file of them."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        images = load(_file(recipe).read_bytes()).get("images")
    except (OSError, SafetensorError):
        return None
    whole = images is not None and images.shape == (count, 1, size, size) and images.dtype == torch.uint8
    return images if whole else None


def _keep(recipe: list[object], images: Tensor) -> None:
    from safetensors.torch import save_file

    try:
        with whole_file(_file(recipe)) as temporary:
            save_file({"images": images}, temporary)
    except (AttemperError, OSError) as error:
        warnings.warn(f"glyphs are drawn anew each time, their cache cannot be written: {error}", stacklevel=3)


GLYPHS = Source(read, SPLITS, len(CHARACTERS), (1, 20, 20), 200 * len(CHARACTERS), "drawn by attemper")
