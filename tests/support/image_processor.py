"""Qwen's image processor as transformers has it with torchvision, without torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize


class ExactImageProcessor(Qwen2VLImageProcessorPil):
    """The form with Pillow, but for the filter: torchvision's, which is this one of torch for 8-bit pictures."""

    def resize(self, image: np.ndarray, size: Any, resample: Any, factor: int, **_: Any) -> np.ndarray:
        height, width = smart_resize(
            *image.shape[-2:], factor=factor, min_pixels=size.shortest_edge, max_pixels=size.longest_edge
        )
        picture = torch.from_numpy(np.ascontiguousarray(image))[None]
        return torch.nn.functional.interpolate(picture, (height, width), mode="bicubic", antialias=True)[0].numpy()
