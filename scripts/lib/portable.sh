# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Builds libcopy_mpi.so so that it loads with every glibc from 2.17 (CentOS 7) on: cargo-zigbuild links it
# against zig's copy of that version's symbols. Needs say and die of the script that sources it.

portable_glibc=2.17
portable_zigbuild_version=0.24.0
portable_ziglang_version=0.17.1

# shellcheck source=scripts/lib/pypi.sh
. "${BASH_SOURCE[0]%/*}/pypi.sh"

# zigbuild: prints the directory with cargo-zigbuild and python-zig (about 450 MB), which is kept in
# ~/.cache/libcopy. Fails with a message where the wheels cannot be had.
zigbuild() {
    local place
    place=$(pypi_environment "zigbuild-$portable_zigbuild_version-$portable_ziglang_version" \
        "cargo-zigbuild==$portable_zigbuild_version" "ziglang==$portable_ziglang_version") || return 1
    echo "$place/bin"
}

# newest_glibc FILE: the newest version of glibc's symbols that the file needs.
newest_glibc() {
    objdump -T "$1" | sed -n 's/.*[( ]GLIBC_\([0-9][0-9.]*\)[) ].*/\1/p' | sort -V | tail -n 1
}

# split_debug FILE DIRECTORY: the file without debug information there, and the debug information beside it,
# where debuggers find it.
split_debug() {
    local name=${1##*/}
    mkdir -p "$2"
    # Programs may have the old file mapped: it is replaced, not written.
    objcopy --only-keep-debug "$1" "$2/$name.debug.$$"
    mv "$2/$name.debug.$$" "$2/$name.debug"
    objcopy --strip-debug --strip-unneeded "$1" "$2/$name.$$"
    (cd "$2" && objcopy --add-gnu-debuglink="$name.debug" "$name.$$")
    mv "$2/$name.$$" "$2/$name"
}

# build_portable ROOT TARGET: builds TARGET/portable/libcopy_mpi.so (and .debug), and checks which glibc it
# needs. Fails with a message.
build_portable() {
    local root=$1 target=$2 tools triple newest
    tools=$(zigbuild) || return 1
    triple=$(rustc -vV | sed -n 's/^host: //p')
    [[ $triple == *-linux-gnu ]] || die "this Rust is for $triple; a portable build needs one for Linux with glibc"
    (cd "$root" && PATH=$tools:$PATH CARGO_TARGET_DIR=$target \
        cargo zigbuild --quiet --release --target "$triple.$portable_glibc" -p libcopy-mpi) || return 1
    split_debug "$target/$triple/release/libcopy_mpi.so" "$target/portable" || return 1
    newest=$(newest_glibc "$target/portable/libcopy_mpi.so")
    if [[ -z $newest || $(printf '%s\n' "$newest" "$portable_glibc" | sort -V | tail -n 1) != "$portable_glibc" ]]; then
        say "libcopy_mpi.so needs glibc ${newest:-(unknown)}, newer than $portable_glibc:"
        objdump -T "$target/portable/libcopy_mpi.so" | grep "GLIBC_$newest" >&2
        return 1
    fi
}
