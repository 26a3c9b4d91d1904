"""MXFP4, the 4-bit float format GPT-OSS checkpoints keep their experts in."""

from __future__ import annotations

import numpy as np

# Microscaling formats (MX) specification v1.0, section 5.3: E2M1, sign in the top bit.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], np.float32)
_BIAS = 127


def dequantize_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Numbers from 4-bit codes and one power-of-two scale per 32 of them.

    Args:
        blocks: uint8 ``[..., groups, 16]``, two codes a byte, the lower half first.
        scales: uint8 ``[..., groups]``, biased exponents.

    Returns:
        float32 ``[..., groups * 32]``.

    Examples:
        >>> codes = np.full((1, 16), 0x21, np.uint8)
        >>> dequantize_mxfp4(codes, np.array([128], np.uint8))[:4]
        array([1., 2., 1., 2.], dtype=float32)
    """
    if blocks.shape[:-1] != scales.shape or blocks.shape[-1] != 16:
        raise ValueError(
            "MXFP4 needs 16 bytes of codes per scale, "
            f"got codes {list(blocks.shape)} and scales {list(scales.shape)}"
        )
    codes = np.stack([blocks & 0x0F, blocks >> 4], axis=-1)
    values = _VALUES[codes].reshape(*scales.shape, 32)
    exponents = scales.astype(np.int32)[..., None] - _BIAS
    return np.ldexp(values, exponents).reshape(*scales.shape[:-1], -1)
