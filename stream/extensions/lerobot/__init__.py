"""Source: episodes of LeRobot datasets. Needs the extra `lerobot`."""

from stream.extension import Extension, SourceType
from stream.options.extra import Extra

LEROBOT = Extra("lerobot", "datasets", "lerobot:", ("pyarrow",))

EXTENSION = Extension(
    name="lerobot",
    sources=(
        SourceType(
            forms="`lerobot:FOLDER#episode=3&camera=top`",
            help="an [episode](#lerobot-datasets) of a LeRobot dataset",
            prefixes=("lerobot:",),
            check="stream.extensions.lerobot.episodes:check",
            extra=LEROBOT,
            open="stream.extensions.lerobot.source:open_episode",
        ),
    ),
)
