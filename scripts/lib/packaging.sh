# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What scripts/install and scripts/package share. Needs $root, and common.sh, of the script that sources it.

# The files that every installation and package has, relative to $root.
# shellcheck disable=SC2034 # used by those that source this
licences=(LICENSE LICENSES/MIT.txt LICENSES/Apache-2.0.txt)

# workspace_version: prints the version of all crates.
workspace_version() {
    local version
    version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
    [[ -n $version ]] || die "no version in $root/Cargo.toml"
    echo "$version"
}

# filled_in TEMPLATE NAME=VALUE...: prints the template with the value of each NAME in the places of @NAME@.
filled_in() {
    local text pair
    text=$(<"$1")
    for pair in "${@:2}"; do
        text=${text//"@${pair%%=*}@"/"${pair#*=}"}
    done
    printf '%s\n' "$text"
}
