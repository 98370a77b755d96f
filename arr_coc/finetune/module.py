"""`TrainableQwen`: a Qwen-VL model and its allocator as a PyTorch module that learns from answers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from arr_coc.finetune.activations import ActivationsOnHost
from arr_coc.finetune.forward import ARRCOCModelOutput, BatchedForward, BatchInputs
from arr_coc.finetune.saving import save_folder
from arr_coc.hub import upload
from arr_coc.layer import ARRCOCConfig, ARRCOCLayer
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.texture.pictures import Picture
from arr_coc.types import Encode


class TrainableQwen(ARRCOCQwen, nn.Module):
    """An `ARRCOCQwen` whose weights learn.

    A PyTorch module of two parts, both trainable: `model`, the stock transformers model, and `allocator`, the
    `ARRCOCLayer` that chooses its tokens. `forward` computes the loss of a batch, `generate` answers with the weights
    as they are by then. `docs/fine-tuning.md` shows training.

    `encode`: how `forward` shows the chosen tokens. `offload_activations`: whether what it saves for the backward pass
    is kept in the host's memory, not on the device.
    """

    accepts_loss_kwargs = False  # transformers' Trainer: the loss is the mean over a batch, as the stock model's

    def __init__(self, qwen: QwenVL, encode: Encode = "sparse") -> None:
        """The allocator is the one that came with the model, else an untrained one that hears no question."""
        nn.Module.__init__(self)
        super().__init__(qwen)
        self.model = qwen.model
        untrained = ARRCOCConfig(levels=qwen.knows_levels, trained_for=qwen.model_id)
        self.allocator = qwen.allocator or ARRCOCLayer(untrained).eval()
        for parameter in self.eval().parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        self.allocator.to(qwen.device)
        self.encode = encode
        self.offload_activations = False
        self._is_trained = False
        self._bind(qwen)
        self.register_state_dict_post_hook(_drop_tied)
        self.register_load_state_dict_pre_hook(_add_tied)

    @classmethod
    def from_pretrained(
        cls, name: str | Path | None = None, *, encode: Encode = "sparse", **options: Any
    ) -> TrainableQwen:
        """Load a model, in eval mode; all weights may be trained.

        Args:
            name: Folder, or name on the hub; None for the bundled model.
            encode: How `forward` shows the chosen tokens.
            **options: As `ARRCOCQwen.from_pretrained`.

        Raises:
            ArrCocError: As `ARRCOCQwen.from_pretrained`.
        """
        model = super().from_pretrained(name, **options)
        model.encode = encode
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model, tokenizer, preprocessing and allocator into a folder that `from_pretrained` reads.

        The allocator, in its folder `arr_coc`, belongs to the weights that it is saved with, also after embeddings were
        trained. Earlier contents of the folder are replaced once everything is written. Raises ModelError if adapters
        of peft are not merged yet, and if the folder cannot be written.
        """
        save_folder(self.qwen, self.allocator, Path(folder))

    def push_to_hub(
        self, name: str, *, private: bool | None = None, token: str | None = None, message: str = "Upload model"
    ) -> str:
        """Upload what `save_pretrained` writes to the hub, and return its address.

        Args:
            name: `owner/model`; the repository is made if it does not exist.
            private: Whether a new repository is private.
            token: Of an account that may write; the one that is logged in if not given.
            message: Of the commit.

        Raises:
            ModelError: The hub refuses it.
            HubUnreachable: No connection.
            ArrCocError: As `save_pretrained`.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload(Path(folder), name, private=private, token=token, message=message)

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of token embeddings."""
        return self.qwen.model.get_input_embeddings()

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Keep no activations of layers for the backward pass, in training mode: they are computed again.

        As transformers does it, in the language model and in the vision tower.
        """
        stock = self.qwen.model
        enable = getattr(stock, "activation_checkpointing_enable", None) or stock.gradient_checkpointing_enable
        enable(activation_checkpointing_kwargs, **options)

    def activation_checkpointing_disable(self) -> None:
        """Keep activations again."""
        stock = self.qwen.model
        (getattr(stock, "activation_checkpointing_disable", None) or stock.gradient_checkpointing_disable)()

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        """The same under the name that transformers before version 5 calls."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs)

    def new_allocator(self, seed: int = 0, **options: Any) -> None:
        """Replace the allocator by a new one for this model's questions, to be trained.

        `options`: fields of `ARRCOCConfig`; `seed` makes its weights. An optimiser of the old one's weights is of no
        use to the new one. Raises OptionError, StrategyError and BudgetError.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = self.qwen.new_allocator(**options)
        self.allocator = layer.to(self.qwen.device).train(self.training)
        self._bind(self.qwen)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        images: Picture | Sequence[Picture | Sequence[Picture]] | None = None,
        question_mask: torch.Tensor | None = None,
        mm_token_type_ids: torch.Tensor | None = None,
    ) -> ARRCOCModelOutput:
        """Compute the logits of a batch of sequences with any number of pictures of any size, and the loss of `labels`.

        The allocator's `config` has budget, strategy and gradient, `encode` says how tokens are shown; see
        `arr_coc.finetune.forward`. With a budget of all tiles the logits are the stock model's. Pictures are given
        as `images`, or as `pixel_values` with `image_grid_thw`, from which the allocator reads the colours.

        Args:
            input_ids: As `ARRCOCQwen.generate` takes them, as are the other inputs of a processor.
            attention_mask: As `generate`.
            labels: [B, S], the token ids to be learned, -100 elsewhere.
            pixel_values: As `generate`; or plain pictures [B, 3, H, W], uint8 or floating in [0, 1], one for each
                sequence, which are put before a text that has no place for them.
            image_grid_thw: As `generate`.
            images: Files, Pillow images, arrays or tensors, in the order of their runs, resized as the model's own
                processor does: one, a list, or a list of lists, one for each sequence.
            question_mask: [B, S], true on the tokens that the allocator takes for the question about a sequence's
                pictures. Without it, that is the text of each picture's turn that is not to be learned.
            mm_token_type_ids: Made by processors; not needed.

        Raises:
            ShapeError, OptionError, NonFiniteError, ContextLengthError: Inputs that cannot be used.
            ArrCocError: As `to_rgb`, for a picture that cannot be read.
        """
        forward = BatchedForward(self.qwen, self.allocator, self.encode)
        inputs = BatchInputs(
            input_ids,
            attention_mask,
            pixel_values,
            image_grid_thw,
            labels,
            images=images,
            question_mask=question_mask,
        )
        if not self.offload_activations:
            return forward(inputs)
        with ActivationsOnHost():
            return forward(inputs)

    def _bind(self, qwen: QwenVL) -> None:
        """Answer with these parts; what was kept of earlier answers is dropped.

        Answers choose with a copy of the allocator, in float32 on the CPU, so that they disturb no training.
        """
        self.qwen = qwen
        if self._is_trained or qwen.allocator is not None or self.allocator.config.query_dim:
            allocator = copy.deepcopy(self.allocator).to("cpu", torch.float32).eval().requires_grad_(False)
            self.qwen = replace(qwen, allocator=allocator)
        self._session = AnswerSession(self.qwen)
        self._versions = _versions(self.model), _versions(self.allocator)

    def _prepare(self) -> None:
        """Drop what was kept of earlier answers if weights have changed since."""
        now = _versions(self.model), _versions(self.allocator)
        if now != self._versions:
            self._is_trained |= now[1] != self._versions[1]
            self._bind(self.qwen)

    def _apply(self, fn: Any, recurse: bool = True) -> TrainableQwen:
        super()._apply(fn, recurse)
        self._bind(self.qwen)
        return self


def _versions(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Place and version of every parameter: another wherever one was replaced or changed."""
    return tuple((parameter.data_ptr(), parameter._version) for parameter in module.parameters())


def _drop_tied(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    """Leave out weights that are another's too, as a head's that are the embeddings': safetensors writes each once."""
    for name in _tied_names(module):
        state.pop(prefix + name, None)


def _add_tied(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give such weights again."""
    for name, first in _tied_names(module).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])


def _tied_names(module: nn.Module) -> dict[str, str]:
    """Return the names of parameters that have another name too, each with its first one."""
    first: dict[int, str] = {}
    parameters = module.named_parameters(remove_duplicate=False)
    return {
        name: first_name
        for name, parameter in parameters
        if (first_name := first.setdefault(id(parameter), name)) != name
    }
