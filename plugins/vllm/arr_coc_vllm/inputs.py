"""Packets as multimodal inputs: parsing, identity, and placeholders in the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from vllm.model_executor.models.qwen3_vl import Qwen3VLMultiModalDataParser, Qwen3VLMultiModalProcessor
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector, MediaWithBytes
from vllm.multimodal.parse import ModalityDataItems
from vllm.multimodal.processing import ProcessorInputs, PromptUpdate

from arr_coc_vllm.packet import Packet, PacketError, find_places, read_packet

TILES, REGIONS, FRAME = "arr_coc_tiles", "arr_coc_regions", "arr_coc_frame"
"""Fields of an item: uint8 [K, 3, 32, 32]; int64 [K, 3]; int64 [4] (rows and columns in tiles, K, overview)."""


def packet_of(item: object) -> Packet | None:
    """Return the packet that an image item is: a `Packet`, or a PNG file with one; None for any other picture.

    Raises PacketError for a damaged packet.
    """
    if isinstance(item, Packet):
        return item
    if not isinstance(item, MediaWithBytes):
        return None
    places = find_places(item.original_bytes)
    return None if places is None else read_packet(places, np.asarray(item.media))


class PacketItems(ModalityDataItems[Sequence[Packet | None], Packet | None]):
    """The packets of a request. None stands for one that is named by its `uuid` alone."""

    def get_count(self) -> int:
        return len(self.data)

    def get(self, index: int) -> Packet | None:
        return self.data[index]

    def get_processor_data(self) -> Mapping[str, object]:
        return {}

    def get_passthrough_data(self) -> Mapping[str, object]:
        return {}


class PacketDataParser(Qwen3VLMultiModalDataParser):
    """vLLM's parser, which also takes packets as images."""

    def _parse_image_data(self, data: Any) -> ModalityDataItems[Any, Any] | None:
        items = data if isinstance(data, list) else [data]
        packets = [packet_of(item) for item in items]
        if not any(packets):
            return super()._parse_image_data(data)
        if any(packet is None and item is not None for packet, item in zip(packets, items, strict=True)):
            raise PacketError("a request holds packets or pictures, not both")
        return PacketItems(packets, "image")


class PacketInfo:
    """Part of a model's processing info: the parser of packets."""

    def get_data_parser(self: Any) -> PacketDataParser:
        return PacketDataParser(
            self.get_hf_config().vision_config.spatial_merge_size,
            video_needs_metadata=True,
            expected_hidden_size=self._get_expected_hidden_size(),
            allow_missing_mm_embeddings=self.allow_missing_mm_embeddings,
        )


class PacketProcessor(Qwen3VLMultiModalProcessor):
    """vLLM's processor, which passes packets on as they are."""

    def _get_mm_hashes(self, inputs: ProcessorInputs) -> Any:
        """Identify packets by their content, whatever name came with them, so that vLLM's caches never mix frames."""
        images, uuids = inputs.mm_data_items.get("image"), inputs.mm_uuid_items or {}
        if isinstance(images, PacketItems):
            names = uuids.get("image") or [None] * len(images)
            ids = [name if image is None else image.content_id for image, name in zip(images.data, names, strict=True)]
            inputs = replace(inputs, mm_uuid_items={**uuids, "image": ids})
        return super()._get_mm_hashes(inputs)

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> BatchFeature:
        images = mm_items.get("image")
        if not isinstance(images, PacketItems):
            return super()._apply_hf_processor_main(mm_items, hf_kwargs)
        if len(mm_items) > 1:
            raise PacketError("a request holds packets or videos, not both")
        packets = [packet for packet in images.data if packet is not None]
        if len(packets) < len(images):
            raise PacketError("a packet is named that the server does not hold; send all packets again")
        frames = [(packet.rows, packet.cols, len(packet.regions), packet.overview) for packet in packets]
        return BatchFeature(
            {
                TILES: torch.from_numpy(np.concatenate([packet.tiles for packet in packets])),
                REGIONS: torch.from_numpy(np.concatenate([packet.regions for packet in packets])),
                FRAME: torch.tensor(frames, dtype=torch.int64),
            }
        )

    def _get_mm_fields_config(
        self, hf_inputs: BatchFeature, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, MultiModalFieldConfig]:
        tokens = hf_inputs.get(FRAME, torch.empty((0, 4), dtype=torch.int64))[:, 2]
        return {
            **super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs),
            TILES: MultiModalFieldConfig.flat_from_sizes("image", tokens),
            REGIONS: MultiModalFieldConfig.flat_from_sizes("image", tokens, keep_on_cpu=True),
            FRAME: MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        }

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, Any], out_mm_kwargs: Any
    ) -> Sequence[PromptUpdate]:
        """Put one placeholder into the prompt for each token of a packet."""
        stock = super()._get_prompt_updates(mm_items, hf_processor_mm_kwargs, out_mm_kwargs)
        updates: dict[str, Any] = {update.modality: update for update in stock}
        image, image_token = updates["image"], self.info.get_hf_config().image_token_id

        def placeholders(index: int) -> Any:
            item = out_mm_kwargs["image"][index]
            return [image_token] * int(item[FRAME].data[2]) if FRAME in item else image.replacement(index)

        return list((updates | {"image": replace(image, replacement=placeholders)}).values())


@MEDIA_CONNECTOR_REGISTRY.register("http")
class PictureConnector(MediaConnector):
    """The server's reader of pictures. Pillow raises SyntaxError for some damaged files: wrong input."""

    async def fetch_image_async(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().fetch_image_async(*args, **options)
        except SyntaxError as error:
            raise PacketError(f"Failed to load image: {error}") from error
