# SPDX-License-Identifier: MIT OR Apache-2.0
"""Recipe for Spack 1.0 and newer; docs/install.md says how to use it."""

from pathlib import Path

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Libcopy(Package):
    """Moves bytes between the processes of one machine with as few copies as possible: a library
    to preload into MPI programs, libraries for Rust and C, and a tool."""

    # Nothing has been released: the sources are what is committed in this recipe's checkout.
    git = Path(__file__).resolve().parents[7].as_uri()

    license("MIT OR Apache-2.0")

    version("main", branch="main")

    depends_on("rust@1.85:", type="build")
    # The linker of Rust programs.
    depends_on("c", type="build")

    requires("platform=linux", msg="libcopy is for Linux")

    def install(self, spec, prefix):
        Executable(join_path(self.stage.source_path, "scripts", "install"))("--prefix", prefix)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(join_path(self.prefix.bin, "libcopy"))("info")
