# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gives the wheel the tag of its binaries, for which hatchling has no option."""

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Tag(BuildHookInterface):
    """The tag that pyproject.toml names."""

    def initialize(self, version, build_data):
        build_data["pure_python"] = False
        build_data["tag"] = self.config["tag"]
