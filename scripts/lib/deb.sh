# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Debian packages: a chroot with debhelper in which they are made, and what tests them. Part of scripts/package; needs
# common.sh, vm-cache.sh, portable.sh and packaging.sh, and what scripts/package has set.
# shellcheck disable=SC2154

deb_suite=trixie
deb_oldest=bullseye
deb_mirror=${LIBCOPY_MIRROR:-http://deb.debian.org/debian}
deb_packages=(debhelper lintian gcc libc6-dev pkgconf)
# What is built, beside what the wheel has.
deb_crates=(libcopy-ffi libcopy-async libcopy-manual)
deb_files=(libcopy.so libcopy_async.so)

# make_deb_chroot SUITE PACKAGES PATH: PACKAGES is a list with commas, or empty.
make_deb_chroot() {
    local proxy=() include=()
    [[ -z ${http_proxy-} ]] || proxy=(--aptopt="Acquire::http::Proxy \"$http_proxy\"")
    [[ -z $2 ]] || include=(--include="$2")
    # shellcheck disable=SC2016
    mmdebstrap --mode=root --variant=minbase --format=directory --aptopt='Acquire::Retries "3"' \
        --aptopt='APT::Install-Recommends "false"' "${proxy[@]}" "${include[@]}" \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb' \
        --customize-hook='touch "$1/etc/resolv.conf"' \
        "$1" "$3" "deb $deb_mirror $1 main"
}

# deb_chroot SUITE [PACKAGE...]: prints the path of a chroot with these packages, which is kept in the cache.
deb_chroot() {
    local suite=$1 name list
    shift
    list=$(IFS=, && echo "$*")
    name=deb-$suite-$(key "$(declare -f make_deb_chroot)" "$deb_mirror" "$list")
    need mmdebstrap mmdebstrap
    artefact "$name" 60 "making a $suite chroot${list:+ with ${list//,/, }}" make_deb_chroot "$suite" "$list"
    echo "$cache/$name"
}

# in_own_namespaces COMMAND...: mounts and processes of the command end with it, however it ends.
in_own_namespaces() {
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc "$@"
}

# deb_source STAGE: makes the source tree of the packages in STAGE/libcopy, with everything that is built in
# installed.
deb_source() {
    local stage=$1 source=$1/libcopy built=$1/built/release maintainer file triple
    triple=$(host_triple)
    maintainer="${DEBFULLNAME:-libcopy developers} <${DEBEMAIL:-libcopy@localhost.localdomain}>"
    mkdir -p "$source" "$built"
    for file in libcopy "${deb_files[@]}" libcopy_mpi.so; do
        stripped "$target/portable/$file" "$built/$file"
    done
    cp "$target/$triple/release/libcopy.a" "$target/$triple/release/manual" "$built/"
    objcopy --strip-debug "$built/libcopy.a"
    CARGO_TARGET_DIR=$stage/built "$root/scripts/install" --no-build --prefix /usr --libdir lib/x86_64-linux-gnu \
        --destdir "$source/installed" >&2
    cp -r "$root/ffi/packaging/debian/." "$source/debian"
    filled_in "$source/debian/control.in" MAINTAINER="$maintainer" GLIBC="$portable_glibc" >"$source/debian/control"
    filled_in "$source/debian/changelog.in" MAINTAINER="$maintainer" VERSION="$version" \
        DATE="$(date -R -u -d "@$SOURCE_DATE_EPOCH")" >"$source/debian/changelog"
    filled_in "$source/debian/copyright.in" \
        EXPAT="$(sed 's/^$/./; s/^/ /' "$root/LICENSES/MIT.txt")" >"$source/debian/copyright"
    rm "$source"/debian/*.in
}

# deb STAGE OUTPUT: makes the packages and prints their paths. The directory STAGE is empty.
deb() {
    local stage=$1 output=$2 chroot file
    ((EUID == 0)) || die "Debian packages are made in a chroot, which takes root"
    [[ $(uname -m) == x86_64 ]] || die "Debian packages are made on x86-64, this machine is $(uname -m)"
    zigbuild >/dev/null || exit 3
    chroot=$(deb_chroot "$deb_suite" "${deb_packages[@]}") || exit 3
    say "building for glibc $portable_glibc and newer (minutes the first time)"
    build_portable "$root" "$target" "${deb_crates[*]}" "${deb_files[*]}" || exit 1
    deb_source "$stage"
    # shellcheck disable=SC2016
    in_own_namespaces "$root/scripts/lib/enter-chroot" "$chroot" --bind "$stage" build \
        env SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" \
        sh -c 'cd /mnt/build/libcopy && dpkg-buildpackage --build=binary --no-sign --no-check-builddeps' >"$stage/log" 2>&1 || {
        tail -n 40 "$stage/log" >&2
        die "dpkg-buildpackage has failed"
    }
    mkdir -p "$output"
    for file in "$stage"/*.deb; do
        mv "$file" "$output/"
        file=$output/${file##*/}
        say "made ${file##*/}, $(($(stat -c %s "$file") / 1024)) KiB"
        echo "$file"
    done
}

# deb_tests OUTPUT: tests the packages of this version there, prints a line for each test, and last how many passed. Fails if one did.
deb_tests() {
    local output=$1 newest oldest passed=0 failed=0 line
    newest=$(deb_chroot "$deb_suite" "${deb_packages[@]}") || exit 3
    oldest=$(deb_chroot "$deb_oldest") || exit 3
    while IFS= read -r line; do
        case $line in
        'ok '*) passed=$((passed + 1)) ;;
        'failed '*) failed=$((failed + 1)) ;;
        esac
        echo "$line"
    done < <(
        in_own_namespaces "$root/scripts/lib/enter-chroot" "$newest" --bind "$output" packages --bind "$root" source \
            sh /mnt/source/ffi/packaging/deb-tests lintian "$version" || echo "failed lintian in $deb_suite: ended with $?"
        for suite in "$deb_suite $newest" "$deb_oldest $oldest"; do
            TMPDIR=$work in_own_namespaces bash "$root/scripts/lib/enter-overlay" "${suite#* }" "$output" "$root" \
                sh /mnt/source/ffi/packaging/deb-tests "${suite%% *}" "$version" || echo "failed ${suite%% *}: ended with $?"
        done
    )
    echo "$passed passed, $failed failed"
    ((passed > 0 && failed == 0))
}
