# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The program that runs the parts of scripts/test and reads what measured programs print (tests/xtask). Needs
# $root, and common.sh, of the script that sources it.

# need_cargo: finds cargo, also where rustup has just put it.
need_cargo() {
    if ! command -v cargo >/dev/null && [[ -f $HOME/.cargo/env ]]; then
        # shellcheck source=/dev/null
        . "$HOME/.cargo/env"
    fi
    command -v cargo >/dev/null || die "cargo is missing; install Rust with rustup (https://rustup.rs)"
}

# xtask ARGUMENT...: runs it; the first call builds it, which takes seconds.
xtask() {
    if [[ -z ${xtask_file-} ]]; then
        need_cargo
        (cd "$root" && cargo build --quiet -p libcopy-xtask >&2) || die "cannot build tests/xtask"
        xtask_file=$(cd "$root" && realpath "${CARGO_TARGET_DIR:-target}")/debug/xtask
    fi
    "$xtask_file" "$@"
}
