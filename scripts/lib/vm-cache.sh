# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The cache of scripts/vm: things are made under tmp/ and renamed when they are whole, one lock for
# each. What is not there under its final name was never finished and is made again.

cache=$(realpath -m "${LIBCOPY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/libcopy}")

# lock VARIABLE NAME [shared|exclusive|try]: takes a lock and puts its descriptor in VARIABLE; it is
# held until unlock or the end of every process that inherited it. "try" fails instead of waiting.
# The file may have been deleted while we waited (a cache is deletable at any time), so what we got
# must still be what the name stands for.
lock() {
    local -n lock_fd=$1
    local file=$cache/lock/$2 mode=--exclusive
    [[ ${3-} != shared ]] || mode=--shared
    while true; do
        mkdir -p "$cache/lock"
        exec {lock_fd}>>"$file"
        if ! flock "$mode" --nonblock "$lock_fd"; then
            if [[ ${3-} == try ]]; then
                exec {lock_fd}>&-
                return 1
            fi
            say "another call is busy with '$2': waiting for it"
            flock "$mode" "$lock_fd"
        fi
        [[ ! $file -ef /proc/self/fd/$lock_fd ]] || return 0
        exec {lock_fd}>&-
    done
}

unlock() {
    local -n unlock_fd=$1
    exec {unlock_fd}>&-
}

# key WORD...: a short hash of the words.
key() {
    printf '%s\0' "$@" | sha256sum | cut -c1-12
}

# artefact NAME SECONDS TEXT FUNCTION ARG...: makes sure that $cache/NAME exists; if not, FUNCTION
# ARG... PATH makes it at PATH. With resume=1 it finds there what a killed call left.
artefact() {
    local name=$1 seconds=$2 text=$3
    shift 3
    [[ ! -e $cache/$name ]] || return 0
    local held
    lock held "$name"
    if [[ ! -e $cache/$name ]]; then
        mkdir -p "$cache/tmp"
        [[ -n ${resume-} ]] || rm -rf "$cache/tmp/$name"
        step "$seconds" "$text" "$cache/log/$name.log" "$@" "$cache/tmp/$name"
        mv -T "$cache/tmp/$name" "$cache/$name"
    fi
    unlock held
}
