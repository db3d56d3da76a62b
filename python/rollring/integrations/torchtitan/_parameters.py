"""The trainer's parameters, and their names for engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import UnsupportedError

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


class Parameters:
    """Those that one rank has, under the names of the whole model."""

    def __init__(self, trainer: Any) -> None:
        made = trainer.train_spec.state_dict_adapter
        model = trainer.job_config.model
        if made is None:
            raise UnsupportedError(
                f"torchtitan has no names of Hugging Face for {model.name}", "unsupported"
            )
        self._adapter = made(trainer.model_args, model.hf_assets_path)
        self._parts = trainer.model_parts
        # Parts of a model may count their layers from 0.
        self._whole_names = getattr(trainer, "_pp_local_to_original", {})

    def own(self) -> Iterator[tuple[str, Any]]:
        """The parameters of this rank's stages."""
        for part in self._parts:
            for name, parameter in part.named_parameters():
                name = self._whole_names.get(name, name)
                for wrapper in _WRAPPERS:
                    name = name.replace(wrapper, "")
                yield name, parameter

    def named(self, name: str, tensor: Any) -> dict[str, Any]:
        """The tensors that Hugging Face makes of a parameter's values, by its names."""
        made: dict[str, Any] = self._adapter.to_hf({name: tensor})
        return made
