# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Builds libcopy_mpi.so, the tool and what packages want besides so that they run with every glibc from 2.17 (CentOS 7)
# on: cargo-zigbuild links them against zig's copy of that version's symbols. Needs say and die of the script that sources it.

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

# of_no_glibc FILE: the functions that the file needs and that no library of its build has, one a line: a shared
# library is linked nevertheless, and is not loaded then.
of_no_glibc() {
    objdump -T "$1" | awk '$3 == "*UND*" && NF == 5 { print $NF }'
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

# stripped FILE COPY: a copy of a file that split_debug has made, without symbols and without the name of its debug
# information.
stripped() {
    objcopy --strip-all --remove-section=.gnu_debuglink "$1" "$2"
}

# host_triple: prints the target that this Rust compiles for by default.
host_triple() {
    rustc -vV | sed -n 's/^host: //p'
}

# build_portable ROOT TARGET [CRATES FILES]: builds libcopy_mpi.so and the tool libcopy into TARGET/portable, each with a
# file of debug information (.debug), and checks which glibc they need. CRATES are built as well, and of what these
# make, FILES are treated alike; both are lists with spaces. Fails with a message.
#
# All in one call of cargo, so that what they have in common is compiled once, with the features of all. The place
# of cargo's registry is not written into them: the files are the same whoever builds them.
build_portable() {
    local root=$1 target=$2 crates=(-p libcopy-mpi -p libcopy-cli) files=(libcopy_mpi.so libcopy)
    local tools triple newest missing file
    for file in ${3-}; do crates+=(-p "$file"); done
    for file in ${4-}; do files+=("$file"); done
    tools=$(zigbuild) || return 1
    triple=$(host_triple)
    [[ $triple == *-linux-gnu ]] || die "this Rust is for $triple; a portable build needs one for Linux with glibc"
    (cd "$root" && PATH=$tools:$PATH CARGO_TARGET_DIR=$target \
        cargo zigbuild --quiet --release --target "$triple.$portable_glibc" "${crates[@]}" \
        --config "target.$triple.rustflags=['--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo']") || return 1
    for file in "${files[@]}"; do
        split_debug "$target/$triple/release/$file" "$target/portable" || return 1
        newest=$(newest_glibc "$target/portable/$file")
        if [[ -z $newest || $(printf '%s\n' "$newest" "$portable_glibc" | sort -V | tail -n 1) != "$portable_glibc" ]]; then
            say "$file needs glibc ${newest:-(unknown)}, newer than $portable_glibc:"
            objdump -T "$target/portable/$file" | grep "GLIBC_$newest" >&2
            return 1
        fi
        missing=$(of_no_glibc "$target/portable/$file")
        if [[ -n $missing ]]; then
            say "$file needs what glibc $portable_glibc does not have: ${missing//$'\n'/, }"
            return 1
        fi
    done
}
