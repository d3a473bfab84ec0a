

def test_shapes_of_another_model_are_refused() -> None:
    from slipstream_proxy.control.validate import check_shapes

    base = {"model.layers.0.self_attn.q_proj": [64, 32]}
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    check_shapes({name.format("A"): {"shape": [8, 32]}, name.format("B"): {"shape": [64, 8]}}, base)
    check_shapes({"base_model.model.other.lora_A.weight": {"shape": [8, 5]}}, base)
    for side, shape in (("A", [8, 31]), ("B", [63, 8]), ("A", [8])):
        with pytest.raises(BadAdapter, match="base model's layer has"):
            check_shapes({name.format(side): {"shape": shape}}, base)
