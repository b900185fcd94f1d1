# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Where scripts that make chroots and mounts do that. Part of scripts/vm and scripts/kernel-patches.

# in_namespaces SCRIPT WORD...: runs SCRIPT again with WORD... in a mount and PID namespace that dies with this process,
# even by SIGKILL, and ends as it ends: no mount and no process outlives us. What is left half done lies in the cache.
# The second run sees LIBCOPY_VM_INSIDE.
in_namespaces() {
    ((EUID == 0)) || die --status 118 "must run as root: it makes chroots and mounts (in a namespace of its own)"
    [[ $(uname -m) == x86_64 ]] || die --status 118 "needs an x86-64 machine"
    need unshare util-linux
    need setpriv util-linux
    need flock util-linux
    unshare --mount --pid --fork true 2>/dev/null ||
        die --status 118 "cannot make mount and PID namespaces here (a container without CAP_SYS_ADMIN?)"
    mkdir -p "$cache"
    LIBCOPY_VM_INSIDE=1 setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc \
        bash "$@" <&0 &
    child=$!
    for signal in HUP INT TERM; do
        # shellcheck disable=SC2064
        trap "kill -KILL $child 2>/dev/null; exit $((128 + $(kill -l $signal)))" "$signal"
    done
    local status=0
    wait "$child" || status=$?
    exit "$status"
}
