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

# upgrades_for PACKAGE...: the packages of this machine that apt-get would upgrade to install these, a line each: name,
# old and new version, and whether the upstream version is the same. It is that for security and stable updates, which
# packages of the same source wait for: libevent-dev can be installed beside its own revision of libevent alone.
upgrades_for() {
    apt-get --simulate install --no-install-recommends --no-upgrade "$@" 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\) \[\([^]]*\)\] (\([^ ]*\) .*/\1 \2 \3/p' |
        awk '
            function upstream(version) {
                sub(/\+b[0-9]+$/, "", version)
                sub(/[+~]deb[0-9]+u[0-9]+$/, "", version)
                sub(/-[^-]*$/, "", version)
                return version
            }
            { print $0, upstream($2) == upstream($3) ? "same" : "other" }' || true
}

# may_install PACKAGE...: says what installing these updates. It fails where a package would get another upstream version.
may_install() {
    local name old new upstream same='' other=''
    while read -r name old new upstream; do
        local -n list=$upstream
        list+=", $name from $old to $new"
    done < <(upgrades_for "$@")
    if [[ -n $other ]]; then
        echo "installing $* would upgrade ${other#, }; do that yourself: apt-get install $*" >&2
        return 1
    fi
    [[ -z $same ]] || echo "installing $* updates ${same#, }" >&2
}

# install_packages PACKAGE...: installs them, as root only. It gives no package of the machine another upstream version.
# Fails when it cannot.
install_packages() {
    ((EUID == 0)) && command -v apt-get >/dev/null || return 1
    apt-get -qq update && may_install "$@" || return 1
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
