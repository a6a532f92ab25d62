"""Backbones of keras-hub with random weights, small: nothing is downloaded."""

from __future__ import annotations

from typing import Any

_IMAGE = {"image_shape": (64, 64, 3)}
_RESNET: dict[str, Any] = {
    **{"input_conv_filters": [64], "input_conv_kernel_sizes": [7], "block_type": "basic_block"},
    **{"stackwise_num_filters": [64, 64, 64], "stackwise_num_blocks": [2, 2, 2]},
    **{"stackwise_num_strides": [1, 2, 2], **_IMAGE},
}
_VD = {"block_type": "bottleneck_block_vd", "input_conv_filters": [16, 16, 32]}
_SWISH = ["hard_swish", "hard_swish"]
# Name -> class and arguments; a tuple in their place is an encoder of the same kind.
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNet": ("ResNet", _RESNET),
    "ResNetV2": ("ResNet", {**_RESNET, "use_pre_activation": True}),
    "ResNetVD": ("ResNet", {**_RESNET, **_VD, "input_conv_kernel_sizes": [3, 3, 3]}),
    "DenseNet": ("DenseNet", {"stackwise_num_repeats": [3, 4, 3], **_IMAGE}),
    "CSPDarkNet": (
        "CSPNet",
        {
            **{"stem_filters": 32, "stem_kernel_size": 3, "stem_strides": 1, **_IMAGE},
            **{"stackwise_depth": [1, 2, 2], "stackwise_strides": [1, 2, 2]},
            **{"stackwise_num_filters": [32, 64, 128]},
            **{"block_type": "dark_block", "stage_type": "dark"},
        },
    ),
    "EfficientNet": (
        "EfficientNet",
        {
            **{"stackwise_kernel_sizes": [3, 3, 5], "stackwise_num_repeats": [1, 2, 2]},
            **{"stackwise_input_filters": [16, 16, 24], "stackwise_output_filters": [16, 24, 40]},
            **{"stackwise_expansion_ratios": [1, 4, 4], "stackwise_strides": [1, 2, 2]},
            **{"stackwise_squeeze_and_excite_ratios": [0.0, 0.25, 0.25]},
            **{"stackwise_block_types": ["fused", "unfused", "v1"]},
            **{"stackwise_force_input_filters": [0] * 3, "stackwise_nores_option": [False] * 3},
            **{"width_coefficient": 1.0, "depth_coefficient": 1.0, "input_shape": (64, 64, 3)},
        },
    ),
    "MobileNet": (
        "MobileNet",
        {
            **{"stackwise_expansion": [[40, 56], [64, 144]], "stackwise_num_blocks": [2, 2]},
            **{"stackwise_num_filters": [[16, 16], [24, 24]]},
            **{"stackwise_kernel_size": [[3, 3], [5, 5]], "stackwise_padding": [[1, 1], [2, 2]]},
            **{"stackwise_num_strides": [[2, 1], [2, 1]]},
            **{"stackwise_se_ratio": [[None, None], [0.25, 0.25]]},
            **{"stackwise_activation": [["relu", "relu"], _SWISH], "output_num_filters": 64},
            **{"input_activation": "hard_swish", "output_activation": "hard_swish"},
            **{"input_num_filters": 16, "depthwise_filters": 8, "depthwise_stride": 2},
            **{"depthwise_residual": False, "squeeze_and_excite": 0.5, "last_layer_filter": 64},
            **_IMAGE,
        },
    ),
    "HGNetV2": (
        "HGNetV2",
        {
            **{"depths": [1, 2], "embedding_size": 32, "hidden_sizes": [64, 128]},
            **{"stem_channels": [3, 16, 32], "hidden_act": "relu", **_IMAGE},
            **{"use_learnable_affine_block": False, "apply_downsample": [False, True]},
            **{"use_lightweight_conv_block": [False, True]},
            **{"stackwise_stage_filters": [(32, 16, 64, 1, 1, 3), (64, 32, 128, 2, 1, 3)]},
        },
    ),
    "Xception": (
        "Xception",
        {
            **{"stackwise_conv_filters": [[32, 64], [64, 128], [128, 128]]},
            **{"stackwise_pooling": [True, True, False], **_IMAGE},
        },
    ),
    "DeepLabV3": (
        "DeepLabV3",
        {
            **{"image_encoder": ("ResNet", _RESNET), "projection_filters": 16, **_IMAGE},
            **{"low_level_feature_key": "P2", "spatial_pyramid_pooling_key": "P4"},
            **{"upsampling_size": 4, "dilation_rates": [2, 4, 6]},
        },
    ),
    "SegFormer": (
        "SegFormer",
        {
            "image_encoder": (
                "MiT",
                {
                    **{"num_layers": 4, "hidden_dims": [16, 32, 48, 64], **_IMAGE},
                    **{"layerwise_depths": [1] * 4, "layerwise_num_heads": [1, 2, 3, 4]},
                    **{"layerwise_sr_ratios": [8, 4, 2, 1], "max_drop_path_rate": 0.0},
                    **{"layerwise_patch_sizes": [7, 3, 3, 3], "layerwise_strides": [4, 2, 2, 2]},
                },
            ),
            "projection_filters": 32,
        },
    ),
}


def build(kind: str, arguments: dict[str, Any]) -> Any:
    import keras_hub

    given = {n: build(*v) if isinstance(v, tuple) and isinstance(v[0], str) else v
             for n, v in arguments.items()}  # fmt: skip
    return getattr(keras_hub.models, f"{kind}Backbone")(**given)
