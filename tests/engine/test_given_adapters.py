"""What vLLM itself makes of PEFT's variants: the trainer's reading of rank and scale is vLLM's, too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from tests.support import peft_variants
from tests.support.peft_variants import LINEAR, VARIANTS
from tests.support.tiny import make_model
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from slipstream.shared.adapter_config import AdapterConfig

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize("name", VARIANTS)
def test_vllm_takes_what_the_table_says_and_scales_it_so(base, tmp_path, name: str) -> None:
    variant = VARIANTS[name]
    folder = peft_variants.save(variant, base, tmp_path / "a")

    def loaded() -> LoRAModel:
        helper = PEFTHelper.from_local_dir(str(folder), None)
        helper.validate_legal(SimpleNamespace(max_lora_rank=16))
        expected = {*LINEAR, "embed_tokens", "lm_head"}
        return LoRAModel.from_local_checkpoint(str(folder), expected, helper, lora_model_id=1, device="cpu")

    if not variant.vllm:
        with pytest.raises(Exception):
            loaded()
        return
    found = loaded().loras
    if variant.refused is None:
        config = AdapterConfig.read(folder, 16)
        for module, lora in found.items():
            assert lora.scaling == pytest.approx(config.scale_of(module), rel=1e-12)
            assert len(lora.lora_a) == config.rank_of(module)
