"""Functions of images and volumes, with inputs that may have more than 65,535 images, channels or rows, and functions of images with many
channels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.differentiable import LENGTH, Function, check_function, random_inputs
from accelkit_conformance.oracle.layouts import arranged

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Shapes = tuple[tuple[int, ...], ...]
_SIZES = {1: (3,), 2: (2, 3), 3: (2, 2, 3)}

IMAGES: Mapping[str, tuple[Function, Shapes]] = {
    "conv2d": (F.conv2d, ((2, 3, 6, 5), (4, 3, 3, 2))),
    "conv2d_one_channel": (F.conv2d, ((2, 1, 6, 5), (4, 1, 3, 2))),
    "conv2d_depthwise": (lambda x, w: F.conv2d(x, w, groups=4), ((2, 4, 6, 5), (4, 1, 3, 2))),
    "conv2d_one_image": (F.conv2d, ((1, 3, 6, 5), (4, 3, 3, 2))),
    "conv_transpose2d": (F.conv_transpose2d, ((2, 3, 6, 5), (3, 4, 3, 2))),
    "conv_transpose2d_one_channel": (F.conv_transpose2d, ((2, 1, 6, 5), (1, 4, 3, 2))),
    "conv2d_one_by_one": (F.conv2d, ((2, 8, 4, 5), (8, 8, 1, 1))),
    "conv2d_of_a_pixel": (lambda x, w: F.conv2d(x, w, padding=1), ((4, 8, 1, 1), (6, 8, 3, 3))),
    "conv2d_of_a_row": (lambda x, w: F.conv2d(x, w, padding=1), ((2, 3, 1, 6), (4, 3, 3, 3))),
    "conv_transpose2d_one_by_one": (F.conv_transpose2d, ((2, 8, 4, 5), (8, 4, 1, 1))),
    "conv3d_of_a_voxel": (lambda x, w: F.conv3d(x, w, padding=1), ((2, 4, 1, 1, 1), (4, 4, 3, 3, 3))),
    "conv3d": (F.conv3d, ((2, 3, 4, 5, 4), (4, 3, 2, 2, 2))),
    "add": (torch.add, ((2, 3, 4, 5), (2, 3, 4, 5))),
    "mul": (torch.mul, ((2, 3, 4, 5), (2, 3, 4, 5))),
    "mul_one_channel": (torch.mul, ((2, 1, 4, 5), (2, 1, 4, 5))),
    "broadcast": (torch.mul, ((2, 3, 4, 5), (2, 3, 1, 1))),
    "cat": (lambda x, y: torch.cat([x, y], 1), ((2, 3, 4, 5), (2, 2, 4, 5))),
    "stack": (lambda x, y: torch.stack([x, y]), ((2, 3, 4, 5), (2, 3, 4, 5))),
    "where": (lambda x, y: torch.where(x > 0, x, y), ((2, 3, 4, 5), (2, 3, 4, 5))),
    "addcmul": (torch.addcmul, ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5))),
    "group_norm": (lambda x, y: F.group_norm(x * y, 2), ((2, 4, 4, 5), (2, 4, 4, 5))),
    "batch_norm": (lambda x, y: F.batch_norm(x + y, None, None, training=True), ((2, 3, 4, 5), (2, 3, 4, 5))),
    "max_pool2d": (lambda x, y: F.max_pool2d(x, 2) * y, ((2, 3, 4, 6), (2, 3, 2, 3))),
    "max_pool2d_of_one_image": (lambda x: F.max_pool2d(x, 2), ((1, 8, 4, 6),)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), ((2, 8, 4, 4, 6),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), ((2, 8, 4, 6),)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), ((2, 8, 4, 4, 6),)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), ((2, 8, 6, 7),)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3), ((2, 8, 6, 7),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), ((2, 8, 3, 4),)),
    "replicate": (lambda x: F.pad(x, (1, 2, 1, 1), mode="replicate"), ((2, 8, 3, 4),)),
    "interpolate": (lambda x, y: F.interpolate(x, size=(7, 5), mode="bilinear") * y, ((2, 3, 4, 5), (2, 3, 7, 5))),
    "pixel_shuffle": (lambda x, y: F.pixel_shuffle(x, 2) * y, ((2, 4, 3, 3), (2, 1, 6, 6))),
    "flatten": (lambda x, w: x.flatten(1) @ w.flatten(1).t(), ((2, 3, 4, 5), (6, 3, 4, 5))),
}
"""Functions of images and volumes, each with the shapes of its inputs."""

_OF_PLANES: Mapping[str, tuple[Function, int]] = {
    **{
        f"{mode}_pad{ndim}d": (lambda x, mode=mode, ndim=ndim: F.pad(x, (1, 1) * ndim, mode=mode), ndim)
        for mode in ("constant", "reflect", "replicate", "circular") for ndim in (1, 2, 3)
    },
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), 1),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), 2),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), 3),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), 1),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), 2),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), 3),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), 1),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), 2),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), 2),
    "nearest": (lambda x: F.interpolate(x, size=(4, 5)), 2),
    "linear": (lambda x: F.interpolate(x, size=5, mode="linear"), 1),
    "bilinear": (lambda x: F.interpolate(x, size=(4, 5), mode="bilinear"), 2),
    "bicubic": (lambda x: F.interpolate(x, size=(4, 5), mode="bicubic"), 2),
    "trilinear": (lambda x: F.interpolate(x, size=(3, 2, 4), mode="trilinear"), 3),
    "instance_norm": (F.instance_norm, 1),
    "unfold": (lambda x: F.unfold(x, 2), 2),
}  # fmt: skip
"""Functions by name, each with the number of dimensions of a plane. The planes are independent of each other."""

_OTHERS: Mapping[str, tuple[Function, Shapes]] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (2, 4), w, b), ((LENGTH, 2, 4), (2, 4), (2, 4))),
    "layer_norm_without_weight": (lambda x, b: F.layer_norm(x, (8,), None, b), ((LENGTH, 8), (8,))),
    "layer_norm_without_bias": (lambda x, w: F.layer_norm(x, (2, 4), w), ((LENGTH, 2, 4), (2, 4))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((LENGTH, 4, 2), (4,), (4,))),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((LENGTH, 3, 2), (3,), (3,))),
    "batch_norm_of_many_channels": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((4, LENGTH, 2), (LENGTH,), (LENGTH,)),
    ),
    "glu": (F.glu, ((LENGTH, 4),)),
    "fold": (lambda x: F.fold(x, (2, 3), 2), ((LENGTH, 4, 2),)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), ((LENGTH, 4, 1, 2),)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), ((LENGTH, 1, 2, 3), (LENGTH, 1, 2, 2))),
    "grid_sample_of_many_places": (lambda x, g: F.grid_sample(x, g, align_corners=False), ((1, 2, 3, 4), (1, LENGTH, 1, 2))),
    "conv_transpose1d": (F.conv_transpose1d, ((LENGTH, 2, 2), (2, 3, 2))),
    "conv_transpose2d": (F.conv_transpose2d, ((LENGTH, 2, 1, 2), (2, 3, 2, 2))),
    "conv3d": (F.conv3d, ((LENGTH, 1, 2, 2, 2), (2, 1, 2, 1, 2))),
    "conv1d_depthwise": (lambda x, w: F.conv1d(x, w, groups=LENGTH), ((2, LENGTH, 3), (LENGTH, 1, 2))),
    "bilinear_layer": (F.bilinear, ((LENGTH, 2), (LENGTH, 3), (2, 2, 3))),
    "cosine_similarity": (F.cosine_similarity, ((LENGTH, 3), (LENGTH, 3))),
    "normalize": (F.normalize, ((LENGTH, 3),)),
    "cross_entropy": (lambda x: F.cross_entropy(x, x.detach().argmax(1)), ((LENGTH, 3),)),
    "cross_entropy_of_probabilities": (lambda x, y: F.cross_entropy(x, y.softmax(1)), ((LENGTH, 3), (LENGTH, 3))),
    "nll_loss2d": (lambda x: F.nll_loss(x, x.detach().argmax(1)), ((LENGTH, 3, 1, 2),)),
    "smooth_l1_loss": (F.smooth_l1_loss, ((LENGTH, 2), (LENGTH, 2))),
    "kl_div": (lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), ((LENGTH, 3), (LENGTH, 3))),
    "triplet_margin_loss": (F.triplet_margin_loss, ((LENGTH, 3), (LENGTH, 3), (LENGTH, 3))),
    **{
        f"{mode}_pad_of_large_planes": (lambda x, mode=mode: F.pad(x, (0, 0, 0, 0, 1, 1), mode=mode), ((1, 1, 3, 257, 256),))
        for mode in ("constant", "reflect", "replicate", "circular")
    },
}  # fmt: skip

FUNCTIONS: Mapping[str, tuple[Function, Shapes]] = {
    **{f"{name},images": (function, ((LENGTH, 1, *_SIZES[ndim]),)) for name, (function, ndim) in _OF_PLANES.items()},
    **{f"{name},channels": (function, ((1, LENGTH, *_SIZES[ndim]),)) for name, (function, ndim) in _OF_PLANES.items()},
    **{f"{name},rows": case for name, case in _OTHERS.items()},
}
"""Functions by name and long dimension, each with the shapes of its inputs."""

CHANNELS: Mapping[str, Function] = {name: function for name, (function, ndim) in _OF_PLANES.items() if ndim == 2 and name != "unfold"} | {
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 1),
    "softmax": lambda x: x.softmax(1),
    "mean": lambda x: x.mean((2, 3)),
}
"""Functions of images, by name, that are called with many channels."""


def check_many_planes(subject: Subject, name: str, dimension: str) -> None:
    """Compare the results and gradients of ``FUNCTIONS["name,dimension"]`` on the device with those on the CPU. Differences are recorded in
    the subject."""
    function, shapes = FUNCTIONS[f"{name},{dimension}"]
    check_function(subject, name, function, random_inputs(*shapes), num_terms=LENGTH)


def check_many_channels(subject: Subject, name: str) -> None:
    """Compare the results and gradients of ``CHANNELS[name]`` on the device with those on the CPU, for images with many channels in several
    memory layouts. Differences are recorded in the subject."""
    function = CHANNELS[name]
    for number, layout in itertools.product((8, 64, 257, 512, 1025), ("contiguous", "channels_last", "channels_last slice")):
        given = [arranged(one, layout) for one in random_inputs((2, number, 4, 6))]
        check_function(subject, f"{name} of {number} channels, {layout}", function, given)
