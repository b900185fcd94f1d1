# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What scripts/bench and scripts/test need from the distribution besides a compiler.

# Commands of both MPI libraries, each with the package that has it.
# shellcheck disable=SC2034 # used by the scripts that source this
mpi_commands=(mpicc.openmpi:libopenmpi-dev mpirun.openmpi:openmpi-bin
    mpicc.mpich:libmpich-dev mpirun.mpich:mpich)

# missing_packages COMMAND:PACKAGE...: the packages whose command is not there, one a line.
missing_packages() {
    local entry
    for entry; do
        command -v "${entry%:*}" >/dev/null || echo "${entry#*:}"
    done
}

# upgraded_by PACKAGE...: the packages of this machine that apt-get would upgrade to install these, in one line.
upgraded_by() {
    apt-get --simulate install --no-install-recommends --no-upgrade "$@" 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\) \[.*/\1/p' | paste -sd ' ' || true
}

# install_packages PACKAGE...: installs them, as root only, and upgrades none. Fails when it cannot.
install_packages() {
    ((EUID == 0)) && command -v apt-get >/dev/null || return 1
    apt-get -qq update || return 1
    local upgraded
    upgraded=$(upgraded_by "$@")
    if [[ -n $upgraded ]]; then
        echo "installing $* would upgrade $upgraded; do that yourself: apt-get install $*" >&2
        return 1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends --no-upgrade "$@" >/dev/null
}

# ensure_packages COMMAND:PACKAGE...: installs the packages whose command is not there. Where it cannot, it
# prints their names and fails.
ensure_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]})) || return 0
    echo "installing ${missing[*]}" >&2
    install_packages "${missing[@]}" >&2 || {
        echo "${missing[*]}"
        return 1
    }
}

# mpich_by_abi_name DIRECTORY: a link to Debian's MPICH there, by the name of MPICH's ABI initiative, which Debian does not
# give it: wheels of mpi4py look for that.
mpich_by_abi_name() {
    mkdir -p "$1" && ln -sf "/usr/lib/$(uname -m)-linux-gnu/libmpich.so.12" "$1/libmpi.so.12"
}
