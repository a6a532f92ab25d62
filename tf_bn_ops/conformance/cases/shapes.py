"""Draws tensor shapes: from empty over one element to many megabytes, odd sizes on purpose."""

from __future__ import annotations

import math

import numpy as np

from tf_bn_ops import spec

# Around the lane counts of vector units (4, 8, 16 floats, and multiples), where tails go wrong;
# 1, 3, 4 are image channels; 1023..1025 and 2048 sit around the blocks of channel-wise kernels.
_CHANNELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127,
             128, 129, 192, 255, 256, 257, 512, 1000, 1023, 1024, 1025, 2048)  # fmt: skip
# Inner sizes (D*H*W) of channels-first tensors: the same for the other loop, and the squares that
# convolutional networks end in (49 = 7*7, 196 = 14*14, ...).
_INNER = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 25, 31, 33, 49, 63, 64, 65, 100, 121, 127,
          128, 129, 196, 225, 255, 257, 361, 784, 1023, 1025, 3136, 3969, 12544)  # fmt: skip
_PRIMES = (11, 13, 37, 61, 101, 251, 509, 1021, 4093, 16381, 65521)

# Class -> (weight, least, most elements). The weights keep the time of a run in check: a large
# case costs as much as hundreds of small ones, and faults are in tails more than in volume.
_CLASSES = {
    "one": (3, 1, 1),
    "single": (6, 1, 5000),  # N*H*W = 1
    "empty": (4, 0, 0),
    "tiny": (22, 2, 200),
    "small": (34, 200, 20_000),
    "medium": (16, 20_000, 200_000),
    "one_channel": (6, 1, 200_000),
    "prime": (5, 1, 200_000),
    "many_channels": (4, 2_000, 500_000),
    # Blocks and chains of sums have sizes that are powers of two: their last step must be right.
    "power_of_two": (4, 1 << 16, 1 << 18),
}
LARGE_ELEMENTS = (1_100_000, 4_000_000)


def _split(rng: np.random.Generator, product: int, parts: int) -> list[int]:
    """`parts` sizes whose product is about `product`, split evenly in the logarithm."""
    if parts == 0:
        return []
    cuts = np.sort(rng.random(parts - 1)) if parts > 1 else np.empty(0)
    shares = np.diff(np.concatenate(([0.0], cuts, [1.0])))
    sizes = [max(1, round(product**share)) for share in shares]
    # What rounding lost goes to the largest, so that the product comes out right.
    largest = int(np.argmax(sizes))
    rest = math.prod(s for i, s in enumerate(sizes) if i != largest)
    sizes[largest] = max(1, product // rest)
    return sizes


def _exact_split(rng: np.random.Generator, product: int, parts: int) -> list[int]:
    """`parts` sizes whose product is exactly the power of two `product`."""
    exponent = product.bit_length() - 1
    cuts = np.sort(rng.integers(0, exponent + 1, parts - 1))
    bounds = np.concatenate(([0], cuts, [exponent]))
    return [1 << int(b) for b in np.diff(bounds)]


def _factors(rng: np.random.Generator, product: int, parts: int) -> list[int]:
    """`parts` sizes whose product is exactly `product`."""
    sizes = []
    for _ in range(parts - 1):
        divisors = [n for n in range(1, math.isqrt(product) + 1) if product % n == 0]
        sizes.append(int(rng.choice(divisors)))
        product //= sizes[-1]
    return [*sizes, product][:parts]


def _log_uniform(rng: np.random.Generator, least: float, most: float) -> int:
    return max(1, round(math.exp(rng.uniform(math.log(least), math.log(most)))))


def _assemble(layout: str, batch: int, channels: int, spatial: list[int]) -> tuple[int, ...]:
    _, channels_last = spec.LAYOUTS[layout]
    return (batch, *spatial, channels) if channels_last else (batch, channels, *spatial)


def _draw_special(
    rng: np.random.Generator, layout: str, name: str, min_channels: int
) -> tuple[int, ...]:
    """A shape of a class that is not drawn by its number of elements."""
    rank, channels_last = spec.LAYOUTS[layout]
    spatial = rank - 2
    if name == "one":
        return _assemble(layout, 1, 1, [1] * spatial)
    if name == "single":
        return _assemble(layout, 1, int(rng.choice(_CHANNELS)), [1] * spatial)
    if name == "empty":
        shape = [int(n) for n in rng.integers(1, 6, rank)]
        axes = list(range(rank))
        if min_channels:
            del axes[-1 if channels_last else 1]
        shape[int(rng.choice(axes))] = 0
        return tuple(shape)
    if name == "prime":
        sizes = [1] * (1 + spatial)
        sizes[int(rng.integers(len(sizes)))] = int(rng.choice(_PRIMES))
        return _assemble(layout, sizes[0], int(rng.choice((1, 2, 3, 17))), sizes[1:])
    assert name == "power_of_two"
    _, least, most = _CLASSES[name]
    product = 1 << int(rng.integers(least.bit_length() - 1, most.bit_length()))
    channels = int(rng.choice((1, 1, 2, 64)))
    batch, *inner = _exact_split(rng, product // channels, 1 + spatial)
    return _assemble(layout, batch, channels, inner)


def _draw_of_size(
    rng: np.random.Generator, layout: str, name: str, least: int, most: int
) -> tuple[int, ...]:
    """A shape of `least` to `most` elements, uniformly in the logarithm."""
    rank, channels_last = spec.LAYOUTS[layout]
    spatial = rank - 2
    elements = _log_uniform(rng, least, most)
    if name == "one_channel":
        channels = 1
    elif name == "many_channels":
        channels = _log_uniform(rng, 2000, 70_000)
    else:
        channels = int(rng.choice([c for c in _CHANNELS if c <= elements]))
    rows = max(1, elements // channels)
    if channels_last:
        batch, *inner = _split(rng, rows, 1 + spatial)
    else:
        # The inner size decides about the loops of a channels-first kernel: draw it first.
        wanted = int(rng.choice([i for i in _INNER if i <= rows]))
        inner = _split(rng, wanted, spatial)
        batch = max(1, rows // math.prod(inner))
    return _assemble(layout, batch, channels, inner)


def _of_level(rng: np.random.Generator, level: tuple[int, int], known: tuple[int, ...] = ()) -> int:
    """A size of a level, not far above its least one; of the known ones where it has any."""
    least, most = level
    usual = [n for n in known if least <= n <= most]
    return int(rng.choice(usual)) if usual else _log_uniform(rng, least, min(most, 3 * least))


def draw_of_levels(
    rng: np.random.Generator,
    layout: str,
    channels: tuple[int, int],
    inner: tuple[int, int],
    rows: tuple[int, int],
) -> tuple[int, ...]:
    """A shape with (least, most) channels, D*H*W and N*D*H*W; 0 rows: N is 0."""
    spatial = spec.LAYOUTS[layout][0] - 2
    size = 1
    if spatial:
        size = _of_level(rng, (inner[0], min(inner[1], rows[1]) if rows[1] else inner[1]), _INNER)
    batch = 0
    if rows[1]:
        batch = _of_level(rng, (-(-rows[0] // size), max(1, rows[1] // size)))
    return _assemble(
        layout, batch, _of_level(rng, channels, _CHANNELS), _factors(rng, size, spatial)
    )


def draw(
    rng: np.random.Generator,
    layout: str,
    large: bool = False,
    power_of_two_rows: bool = False,
    min_channels: int = 0,
) -> tuple[int, ...]:
    """A shape in `layout`.

    Args:
      rng: where chance comes from.
      layout: one of spec.LAYOUTS.
      large: some megabytes instead of a random class.
      power_of_two_rows: make N*D*H*W a power of two of at most 1024.
      min_channels: no empty shape has fewer.
    """
    if power_of_two_rows:
        rows = 1 << int(rng.integers(0, 11))
        batch, *inner = _exact_split(rng, rows, spec.LAYOUTS[layout][0] - 1)
        return _assemble(layout, batch, int(rng.choice(_CHANNELS)), inner)
    if large:
        return _draw_of_size(rng, layout, "large", *LARGE_ELEMENTS)
    weights = np.array([weight for weight, *_ in _CLASSES.values()], float)
    name = list(_CLASSES)[int(rng.choice(len(weights), p=weights / weights.sum()))]
    if name in ("one", "single", "empty", "prime", "power_of_two"):
        return _draw_special(rng, layout, name, min_channels)
    return _draw_of_size(rng, layout, name, *_CLASSES[name][1:])
