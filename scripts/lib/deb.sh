# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Debian packages: a chroot with debhelper in which they are made, and what tests them. Part of scripts/package; needs
# common.sh, vm-cache.sh, portable.sh and packaging.sh, and what scripts/package has set.
# shellcheck disable=SC2154

deb_suite=trixie
# The older ones that libraries and tool are installed on, too.
deb_older=(bookworm bullseye)
deb_mirror=${LIBCOPY_MIRROR:-http://deb.debian.org/debian}
deb_packages=(debhelper dh-dkms lintian gcc libc6-dev pkgconf)
# What DKMS builds the module with, and the metadata of a kernel's Rust crates.
deb_compilers=(rustc rust-src bindgen clang gcc libc6-dev make flex bison bc libelf-dev libssl-dev libdw-dev dwarves
    python3 perl xz-utils zlib1g-dev openssl kmod)
# A Debian with an init system, and with a kernel that is too old for the module.
deb_machine=(systemd-sysv udev dkms erofs-utils initramfs-tools linux-headers-amd64 "${deb_compilers[@]}")
# What is built, beside what the wheel has.
deb_crates=(libcopy-ffi libcopy-async libcopy-manual)
deb_files=(libcopy.so libcopy_async.so)

# make_deb_chroot SUITE PACKAGES PATH: PACKAGES is a list with commas, or empty. SUITE may end with +backports.
make_deb_chroot() {
    local proxy=() include=() suites=("deb $deb_mirror ${1%+*} main")
    [[ $1 != *+* ]] || suites+=("deb $deb_mirror ${1/+/-} main")
    [[ -z ${http_proxy-} ]] || proxy=(--aptopt="Acquire::http::Proxy \"$http_proxy\"")
    [[ -z $2 ]] || include=(--include="$2")
    # Kernels boot in scripts/vm, which has an initramfs of its own.
    # shellcheck disable=SC2016
    INITRD=No mmdebstrap --mode=root --variant=minbase --format=directory --aptopt='Acquire::Retries "3"' \
        --aptopt='APT::Install-Recommends "false"' "${proxy[@]}" "${include[@]}" \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb' \
        --customize-hook='touch "$1/etc/resolv.conf"' \
        "${1%+*}" "$3" "${suites[@]}"
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
    deb_module_source "$source"
    filled_in "$source/debian/control.in" MAINTAINER="$maintainer" GLIBC="$portable_glibc" \
        COMPILERS="$(printf '%s, ' "${deb_compilers[@]}")" >"$source/debian/control"
    [[ -z $kernel ]] || deb_module "$source"
    filled_in "$source/debian/changelog.in" MAINTAINER="$maintainer" VERSION="$version" \
        DATE="$(date -R -u -d "@$SOURCE_DATE_EPOCH")" >"$source/debian/changelog"
    filled_in "$source/debian/copyright.in" \
        EXPAT="$(sed 's/^$/./; s/^/ /' "$root/LICENSES/MIT.txt")" >"$source/debian/copyright"
    rm -f "$source"/debian/*.in "$source"/debian/libcopy-modules.*
}

# deb_module_source SOURCE: what packages of the module have but the module itself: its source, and the files of the system.
deb_module_source() {
    local source=$1 module=$1/installed/usr/src/libcopy-$version name
    mkdir -p "$module"
    (cd "$root" && tar -c Kbuild kmod) | tar -C "$module" -x --no-same-owner --exclude=kmod/system
    cp "$root/kmod/dkms/dkms.conf" "$source/debian/libcopy-dkms.dkms"
    rm "$module/kmod/dkms/dkms.conf"
    for name in sysusers udev; do
        cp "$root/kmod/system/libcopy.$name" "$source/debian/libcopy-module-common.$name"
    done
    install -D -m 644 "$root/kmod/system/libcopy.limits" "$source/installed/etc/security/limits.d/libcopy.conf"
    install -D -m 644 "$root/kmod/system/libcopy.modules-load" "$source/installed/usr/lib/modules-load.d/libcopy.conf"
}

# deb_kernel VERSION: sets $kernel and $ko to a kernel and the module for it; "newest" is the newest of backports.
deb_kernel() {
    local words=()
    [[ $1 == newest ]] || words=(--kernel "$1")
    need modinfo kmod
    ko=$("$root/scripts/vm" module "${words[@]}") || exit 3
    kernel=$(modinfo -F vermagic "$ko")
    kernel=${kernel%% *}
}

# deb_module SOURCE: adds a package with the module $ko for $kernel.
deb_module() {
    local source=$1 package=libcopy-modules-$kernel file
    install -D -m 644 "$ko" "$source/installed/usr/lib/modules/$kernel/updates/libcopy.ko"
    for file in "$source"/debian/libcopy-modules.*; do
        filled_in "$file" KERNEL="$kernel" >"$source/debian/$package.${file##*libcopy-modules.}"
        rm "$file"
    done
    cat "$source/debian/$package.control" >>"$source/debian/control"
    rm "$source/debian/$package.control"
}

# deb STAGE OUTPUT: makes the packages and prints their paths. The directory STAGE is empty.
deb() {
    local stage=$1 output=$2 chroot file
    ((EUID == 0)) || die "Debian packages are made in a chroot, which takes root"
    [[ $(uname -m) == x86_64 ]] || die "Debian packages are made on x86-64, this machine is $(uname -m)"
    zigbuild >/dev/null || exit 3
    chroot=$(deb_chroot "$deb_suite" "${deb_packages[@]}") || exit 3
    [[ -z $kernel ]] || deb_kernel "$kernel"
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

# deb_tests STAGE OUTPUT: tests the packages of this version there, prints a line for each test, and last how many passed.
# Fails if one did.
deb_tests() {
    local stage=$1 output=$2 newest chroot machine passed=0 failed=0 line suites=()
    newest=$(deb_chroot "$deb_suite" "${deb_packages[@]}") || exit 3
    suites=("$deb_suite $newest")
    for suite in "${deb_older[@]}"; do
        chroot=$(deb_chroot "$suite") || exit 3
        suites+=("$suite $chroot")
    done
    machine=$(deb_chroot "$deb_suite+backports" "${deb_machine[@]}" \
        "linux-base/$deb_suite-backports" "linux-image-$kernel" "linux-headers-$kernel") || exit 3
    while IFS= read -r line; do
        case $line in
        'ok '*) passed=$((passed + 1)) ;;
        'failed '*) failed=$((failed + 1)) ;;
        esac
        echo "$line"
    done < <(
        in_own_namespaces "$root/scripts/lib/enter-chroot" "$newest" --bind "$output" packages --bind "$root" source \
            sh /mnt/source/ffi/packaging/deb-tests lintian "$version" || echo "failed lintian in $deb_suite: ended with $?"
        for suite in "${suites[@]}" "module $machine"; do
            TMPDIR=$work in_own_namespaces bash "$root/scripts/lib/enter-overlay" "${suite#* }" "$output" "$root" "$stage" \
                sh /mnt/source/ffi/packaging/deb-tests "${suite%% *}" "$version" "$kernel" ||
                echo "failed ${suite%% *}: ended with $?"
        done
        "$root/scripts/vm" run --no-module --kernel "$kernel" --image "$stage/machine.erofs" --timeout 900 -- \
            sh "$root/ffi/packaging/deb-tests" boot "$version" "$kernel" || echo "failed boot: ended with $?"
    )
    echo "$passed passed, $failed failed"
    ((passed > 0 && failed == 0))
}
