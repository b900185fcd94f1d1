# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# This machine's MPICH for the guest, which has none of its own.

# bundle_mpich DIR: the launcher, its helper, the libraries of both but for the C library's, and
# the programs that scripts/segments-in-guest, scripts/early-in-guest and scripts/rdma-in-guest run.
bundle_mpich() {
    local launcher proxy library
    launcher=$(readlink -f "$(command -v mpirun.mpich)") || return 1
    proxy=${launcher%/*}/hydra_pmi_proxy
    library=$(mpicc.mpich -show | tr ' ' '\n' | sed -n 's/^-L//p' | while read -r dir; do
        [[ -e $dir/libmpich.so.12 ]] && readlink -f "$dir/libmpich.so.12" && break
    done)
    [[ -x $proxy ]] || return 1
    [[ -n $library ]] || library=/usr/lib/$(uname -m)-linux-gnu/libmpich.so.12
    mkdir -p "$1/bin" "$1/lib"
    cp -L "$launcher" "$1/bin/mpiexec" && cp -L "$proxy" "$1/bin/hydra_pmi_proxy" &&
        cp -L "$library" "$1/lib/libmpich.so.12" || return 1
    ldd "$launcher" "$proxy" "$library" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv)\.so' |
        xargs -r -I{} cp -L {} "$1/lib/"
    local sources program
    sources=$(dirname "${BASH_SOURCE[0]}")/../..
    for program in tests/peers/mpi_{segments,first}.c ffi/mpi/tests/{early,nonblocking,overlap,rdma{,_cases,_end,_exchange,_kept}}.c; do
        mpicc.mpich -std=gnu11 -O2 -Wall -Wextra -Werror -I"$sources/ffi/mpi/include" -o "$1/bin/$(basename "$program" .c)" \
            "$sources/$program" || return 1
    done
}
