# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# From Debian's index to a loadable module: the build chroot, the choice of a kernel, its Rust
# metadata, and libcopy.ko. Part of scripts/vm and scripts/kernel-patches.

mirror=${LIBCOPY_MIRROR:-http://deb.debian.org/debian}
suite=trixie
backports=trixie-backports

# The compilers are those of trixie itself: the kernels of backports are built with them, and Rust
# metadata is only good for the very compiler that made it. QEMU is the one of backports.
chroot_packages=(rustc rust-src rustfmt bindgen clang lld llvm gcc libc6-dev make flex bison bc
    libelf-dev libssl-dev libdw-dev dwarves python3-minimal rsync kmod cpio xz-utils zstd zlib1g-dev
    openssl perl busybox-static erofs-utils ca-certificates mmdebstrap util-linux)
chroot_backports=(qemu-system-x86)

build_chroot() { # build_chroot PATH
    local proxy=()
    if [[ -n ${http_proxy-} ]]; then
        proxy=(--aptopt="Acquire::http::Proxy \"$http_proxy\"")
    fi
    # SIGKILL may leave device nodes and files here, never mounts: we are in a namespace of our own.
    # shellcheck disable=SC2016
    mmdebstrap --mode=root --variant=apt --format=directory --aptopt='Acquire::Retries "3"' \
        --aptopt='APT::Install-Recommends "false"' "${proxy[@]}" \
        --include="$(IFS=, && echo "${chroot_packages[*]}")" \
        --customize-hook='chroot "$1" apt-get install -y --no-install-recommends -t '"$backports ${chroot_backports[*]}" \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb' \
        --customize-hook='touch "$1/etc/resolv.conf"' \
        "$suite" "$1" \
        "deb $mirror $suite main" "deb $mirror $backports main"
    [[ -x $1/usr/bin/qemu-system-x86_64 && -x $1/usr/bin/rustc ]]
}

chroot_name=chroot-$(key "$(declare -f build_chroot)" "$mirror" "${chroot_packages[@]}" "${chroot_backports[@]}")

ensure_chroot() {
    [[ ! -e $cache/$chroot_name ]] || return 0
    artefact "$chroot_name" 120 "making a $suite chroot with compilers and QEMU" build_chroot
}

# in_chroot [--bind SOURCE NAME]... COMMAND...: runs COMMAND in the build chroot, which sees the
# cache as /mnt/cache, SOURCE as /mnt/NAME, and none of its own files writable.
in_chroot() {
    unshare --mount "$here/lib/enter-chroot" "$cache/$chroot_name" --bind "$cache" cache "$@"
}

# inside PATH: what a path of the cache is called in the chroot.
inside() {
    printf '%s' "/mnt/cache${1#"$cache"}"
}

# apt's state lives beside the chroot: refreshing the index never touches the chroot itself.
apt_options() { # apt_options LISTS
    printf '%s\n' -o "Dir::State::Lists=$1" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root -o Acquire::Retries=3
}

build_index() { # build_index PATH
    local options
    mkdir -p "$1/lists/partial"
    if [[ -d $cache/index/lists ]]; then
        cp -r "$cache/index/lists/." "$1/lists/"
    fi
    mapfile -t options < <(apt_options "$(inside "$1/lists")")
    in_chroot apt-get "${options[@]}" -o APT::Update::Error-Mode=any update
    # name, version, file name, hash and size of everything about kernels
    cat "$1"/lists/*"$backports"_main_binary-amd64_Packages | awk '
        /^Package: /  { name = $2 }
        /^Version: /  { version = $2 }
        /^Filename: / { file = $2; sub(/.*\//, "", file) }
        /^SHA256: /   { hash = $2 }
        /^Size: /     { size = $2 }
        /^$/          { if (name ~ /^linux-(headers|source|binary|modules)-/) print name, version, file, hash, size }
    ' >"$1/kernels"
    [[ -s $1/kernels ]]
}

# The index is looked at again after a day. Without network an old one will do.
ensure_index() {
    local held
    [[ -z $(find "$cache/index/kernels" -mmin -1440 2>/dev/null) || -n ${1-} ]] || return 0
    lock held index
    if [[ -z $(find "$cache/index/kernels" -mmin -1440 2>/dev/null) || -n ${1-} ]]; then
        mkdir -p "$cache/tmp"
        rm -rf "$cache/tmp/index" "$cache/tmp/index.old"
        if [[ -e $cache/index/kernels ]]; then
            say "looking for new kernels"
            mkdir -p "$cache/log"
            if bash "$here/vm" __index "$cache/tmp/index" >"$cache/log/index.log" 2>&1; then
                mv -T "$cache/index" "$cache/tmp/index.old"
                mv -T "$cache/tmp/index" "$cache/index"
                rm -rf "$cache/tmp/index.old"
            else
                say "the package index cannot be refreshed (see $cache/log/index.log): using the one of $(date -r "$cache/index/kernels" +%F)"
            fi
        else
            rm -rf "$cache/index"
            step 10 "fetching the package index of $backports" "$cache/log/index.log" build_index "$cache/tmp/index"
            mv -T "$cache/tmp/index" "$cache/index"
        fi
    fi
    unlock held
}

# fetch PACKAGE VERSION: puts the package file in $cache/debs and its path in $deb. A file that is
# there already is believed only if its hash is the one of the index.
fetch() {
    local name=$1 version=$2 file hash size options held
    read -r file hash size < <(awk -v n="$name" -v v="$version" '$1 == n && $2 == v { print $3, $4, $5 }' "$cache/index/kernels") ||
        die --status 118 "the package index does not have $name $version"
    deb=$cache/debs/$file
    if [[ -e $deb ]]; then
        if [[ $(sha256sum <"$deb") == "$hash  -" ]]; then return; fi
        say "$file in the cache is damaged: fetching it again"
        rm -f "$deb"
    fi
    lock held "$file"
    if [[ ! -e $deb ]]; then
        mkdir -p "$cache/debs"
        rm -rf "$cache/tmp/$file.d"
        mkdir -p "$cache/tmp/$file.d"
        mapfile -t options < <(apt_options /mnt/cache/index/lists)
        # shellcheck disable=SC2016
        step "$((size / 20000000 + 1))" "downloading $name $version ($((size / 1000000)) MB)" "$cache/log/$file.log" \
            in_chroot bash -c 'cd "$1" && shift && "$@" || touch failed' - "$(inside "$cache/tmp/$file.d")" \
            apt-get "${options[@]}" download "$name=$version"
        if [[ -e $cache/tmp/$file.d/failed ]]; then
            tail -n 5 "$cache/log/$file.log" | sed 's/^/    | /' >&2
            [[ -z ${LIBCOPY_VM_AGAIN-} ]] || die --status 118 "cannot download $name $version"
            # The mirror drops versions: perhaps our index still has what is gone.
            say "cannot download $name $version: looking at the index again"
            unlock held
            ensure_index now
            LIBCOPY_VM_AGAIN=1 exec bash "$checkout/$program" ${command:+"$command"} "${original[@]}"
        fi
        set -- "$cache/tmp/$file.d"/*.deb
        [[ $(sha256sum <"$1") == "$hash  -" ]] || die --status 118 "the download of $name does not have the hash of the index"
        mv -T "$1" "$deb"
        rm -rf "$cache/tmp/$file.d"
    fi
    unlock held
}

unpack_deb() { # unpack_deb DEB TARGET [MEMBER]...
    local deb=$1 target=$2
    shift 2
    mkdir -p "$target"
    in_chroot bash -eo pipefail -c 'dpkg-deb --fsys-tarfile "$1" | tar -C "$2" -x --no-same-owner "${@:3}"' - \
        "$(inside "$deb")" "$(inside "$target")" "$@"
}

# kernel_table: one line for every kernel for which the index has headers or an image:
# "VERSION PACKAGE-VERSION STATE REASON", newest first. STATE is complete, compile or unusable.
kernel_table() {
    awk '
        { have[$1, $2] = 1; names[$1] = 1; version[$1, ++count[$1]] = $2 }
        $1 ~ /^linux-(headers|binary|modules)-[0-9.]+\+deb[0-9]+-amd64$/ {
            kernel = $1; sub(/^linux-[a-z]+-/, "", kernel); kernels[kernel] = 1
        }
        END {
            for (kernel in kernels) {
                series = kernel; sub(/\.[0-9]+\+.*/, "", series)
                headers = "linux-headers-" kernel; source = "linux-source-" series
                if (!(headers in names)) {
                    print kernel, "-", "unusable", "no linux-headers in the index"
                    continue
                }
                v = version[headers, count[headers]]
                missing = ""
                if (!((source, v) in have)) {
                    print kernel, v, "unusable", "no " source " of version " v " in the index"
                    continue
                }
                if (!(("linux-binary-" kernel, v) in have)) missing = missing " linux-binary"
                if (!(("linux-modules-" kernel, v) in have)) missing = missing " linux-modules"
                if (missing == "") print kernel, v, "complete", ""
                else print kernel, v, "compile", "not in the index yet:" missing
            }
        }' "$cache/index/kernels" | sort -rV
}

# kernel_line VERSION: its line of the table; "7.2.12" stands for "7.2.12+deb13-amd64".
kernel_line() {
    kernel_table | awk -v k="$1" '$1 == k || index($1, k "+") == 1 { print; exit }'
}

# Rebuilds what Debian's header packages leave out: the metadata of the kernel's Rust crates. The
# verdict says whether it is that of the shipped kernel; without one a module would not load.
build_kernel() { # build_kernel VERSION HEADERS-DEB SOURCE-DEB PATH
    local version=$1 headers=$2 source=$3 out=$4
    local src=$out/src
    mkdir -p "$src"
    unpack_deb "$headers" "$out/headers"
    local config=$out/headers/usr/src/linux-headers-$version/.config
    if ! grep -q '^CONFIG_RUST=y' "$config"; then
        echo "no CONFIG_RUST" >"$out/verdict"
        rm -rf "$src" "$out/headers"
        return
    fi
    local counts status=0
    counts=$(in_chroot --bind "$checkout/kmod/dkms" dkms --bind "$src" linux /mnt/dkms/rust-metadata "$version" \
        "$(inside "${config%/.config}")" "$(inside "$source")" /mnt/linux | tee /dev/stderr | tail -n 1) || status=$?
    rm -rf "$out/headers"
    case $status in
    0) echo ok >"$out/verdict" ;;
    77) echo "$counts" >"$out/verdict" ;;
    *) return "$status" ;;
    esac
    echo "$counts" >"$out/counts"
}

kernel_key=$(key "$(declare -f build_kernel unpack_deb)" "$(cat "$checkout/kmod/dkms/rust-metadata")" "$chroot_name")

# ensure_kernel VERSION PACKAGE-VERSION: afterwards $kernel_dir has the tree and its verdict.
ensure_kernel() {
    local version=$1 package_version=$2 headers series=${1%%+*}
    kernel_dir=$cache/kernel-$version-$kernel_key
    [[ ! -e $kernel_dir ]] || return 0
    fetch "linux-headers-$version" "$package_version"
    headers=$deb
    fetch "linux-source-${series%.*}" "$package_version"
    artefact "${kernel_dir##*/}" 150 "rebuilding the Rust metadata of Linux $version" \
        build_kernel "$version" "$headers" "$deb"
    if [[ $(cat "$kernel_dir/verdict") == ok ]]; then
        say "Linux $version: the metadata matches: $(cat "$kernel_dir/counts")"
    fi
}

# choose_kernel [VERSION]: sets $kernel, $kernel_version and $kernel_dir to a kernel that can be
# booted: VERSION, or the newest one that is complete and whose metadata matches.
choose_kernel() {
    local name version state reason lines
    if [[ -n ${1-} ]]; then
        # A version that the index has dropped since stays usable from the cache.
        local cached=("$cache"/kernel-"$1"*-"$kernel_key")
        if [[ -z $(kernel_line "$1") && -e ${cached[0]} ]]; then
            kernel_dir=${cached[0]} kernel=${cached[0]##*/kernel-}
            kernel=${kernel%-"$kernel_key"}
            kernel_version=-
            return
        fi
        lines=$(kernel_line "$1")
        [[ -n $lines ]] || die "there is no kernel '$1' in $backports: 'scripts/vm kernels' lists what is there"
    else
        lines=$(kernel_table)
    fi
    while read -r name version state reason; do
        if [[ $state == complete || (-n ${1-} && $state == compile && -n ${compile_only-}) ]]; then
            ensure_kernel "$name" "$version"
            if [[ $(cat "$kernel_dir/verdict") == ok ]]; then
                kernel=$name
                kernel_version=$version
                return
            fi
            reason=$(cat "$kernel_dir/verdict")
        fi
        [[ ($state == unusable || $command == run) && -z ${1-} ]] || say "Linux $name cannot be booted: $reason"
    done <<<"$lines"
    die --status 118 "no kernel of $backports can be used"
}

# Documents of the kernel that its tree in the cache leaves out.
build_documents() { # build_documents SOURCE-DEB DOCUMENT... PATH
    local source=$1 out=${!#}
    set -- "${@:2:$#-2}"
    mkdir -p "$out"
    # shellcheck disable=SC2016
    in_chroot bash -eo pipefail -c 'dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards "./usr/src/linux-source-*.tar.xz" |
        xz -dc -T0 | tar -C "$2" -x --strip-components=1 --no-same-owner --wildcards "${@:3}"' - \
        "$(inside "$source")" "$(inside "$out")" "${@/#/linux-source-*/}"
}

# The module is keyed by everything it is made of. The checkout is copied, so it stays clean.
module_key() {
    (cd "$checkout" && find Kbuild kmod -type f \( -name Kbuild -o -name Makefile -o -name '*.rs' -o -name '*.[chS]' \) -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum)
}

build_module() { # build_module VERSION KERNEL-DIR PATH
    local version=$1 dir=$2 out=$3 flags=("LOCALVERSION=+${1#*+}")
    # A kernel of our own has its local version in its configuration and its compiler in makeflags.
    [[ ! -e $dir/makeflags ]] || mapfile -t flags <"$dir/makeflags"
    ((!coverage)) || flags+=(COVERAGE=1)
    ((engines)) || flags+=(LIBCOPY_ENGINES=n)
    mkdir -p "$out/libcopy"
    (cd "$checkout" && find Kbuild kmod -type f \( -name Kbuild -o -name Makefile -o -name '*.rs' -o -name '*.[chS]' \) -print0 |
        tar -c --null -T -) | tar -C "$out/libcopy" -x --no-same-owner
    in_chroot --bind "$dir/src" linux --bind "$out/libcopy" libcopy \
        make -C /mnt/linux -j"$(nproc)" "${flags[@]}" M=/mnt/libcopy modules
    local vermagic
    vermagic=$(in_chroot modinfo -F vermagic "$(inside "$out/libcopy/kmod/libcopy.ko")")
    echo "vermagic: $vermagic"
    if [[ ${vermagic%% *} != "$version" ]]; then
        echo "the module was built for '${vermagic%% *}', not for '$version'"
        return 1
    fi
    mv "$out/libcopy/kmod/libcopy.ko" "$out/libcopy.ko"
    rm -rf "$out/libcopy"
}

# ensure_module: sets $module to the libcopy.ko of this checkout for $kernel.
ensure_module() {
    local name
    name=module-$kernel-$(key "$(module_key)" "$(declare -f build_module)" "$kernel_dir" "$coverage" "$engines")
    artefact "$name" 15 "building libcopy.ko for Linux $kernel" build_module "$kernel" "$kernel_dir"
    module=$cache/$name/libcopy.ko
    # Every edit leaves a module behind.
    find "$cache" -maxdepth 1 -name 'module-*' -mtime +14 ! -path "$cache/$name" -exec rm -rf {} +
}

# A checker of the distribution that the kernels are built in, unpacked beside it.
build_checker() { # build_checker PACKAGE PATH
    local options
    mapfile -t options < <(apt_options /mnt/cache/index/lists)
    mkdir -p "$2"
    # shellcheck disable=SC2016
    in_chroot bash -eo pipefail -c 'cd "$1" && apt-get "${@:3}" download "$2/$(. /etc/os-release && echo "$VERSION_CODENAME")"
        dpkg-deb -x "$2"_*.deb . && rm "$2"_*.deb' - "$(inside "$2")" "$1" "${options[@]}"
}

# run_checker PACKAGE PATTERN ARG...: has make, with ARG..., check the module for $kernel with Debian's PACKAGE, which
# lies in /mnt/checker; no line that matches PATTERN may be left.
run_checker() {
    local package=$1 pattern=$2 name work=$cache/tmp/$1.$$ status=0
    shift 2
    name=$package-$(key "$(declare -f build_checker)" "$chroot_name")
    artefact "$name" 5 "fetching Debian's $package" build_checker "$package"
    mkdir -p "$work/libcopy"
    (cd "$checkout" && tar -c Kbuild kmod) | tar -C "$work/libcopy" -x --no-same-owner
    in_chroot --bind "$kernel_dir/src" linux --bind "$work/libcopy" libcopy --bind "$cache/$name" checker \
        make -C /mnt/linux "LOCALVERSION=+${kernel#*+}" M=/mnt/libcopy "$@" >"$work/out" 2>&1 || status=1
    ! grep -qE "$pattern" "$work/out" || status=1
    ((!status)) || cat "$work/out" >&2
    rm -rf "$work"
    return "$status"
}

# The clippy of the very compiler that the kernels are built with; no warning may be left.
run_clippy() {
    run_checker rust-clippy '^(warning|error)' \
        CLIPPY=1 CLIPPY_DRIVER=/mnt/checker/usr/bin/clippy-driver kmod/libcopy_main.o
}

# sparse on the module's C; no warning may be left in that. What the sparse of Debian 13 (0.6.4) does not know is put in
# words that it does: Linux 7.3 declares variables with __typeof_unqual__, and asserts the length of a module's strings
# with __builtin_strlen(), which is no constant to sparse.
run_sparse() {
    local objects
    mapfile -t objects < <(cd "$checkout" && printf '%s\n' kmod/*/*.c | sed 's/c$/o/')
    run_checker sparse '(^|/)kmod/[^ ]*: (warning|error)|: error: ' C=2 \
        "CHECK=/mnt/checker/usr/bin/sparse -D__typeof_unqual__=__typeof__ '-D__builtin_strlen(text)=(sizeof(text)-1)'" \
        "${objects[@]}"
}

build_boot() { # build_boot VERSION BINARY-DEB MODULES-DEB PATH
    local version=$1 binary=$2 modules=$3 out=$4
    unpack_deb "$binary" "$out/x"
    unpack_deb "$modules" "$out/x"
    mv "$out/x/usr/lib/modules/$version" "$out/modules"
    mv "$out/modules/vmlinuz" "$out/vmlinuz" 2>/dev/null || mv "$out/x/boot/vmlinuz-$version" "$out/vmlinuz"
    rm -rf "$out/x" "$out/modules/build" "$out/modules/source"
    mkdir -p "$out/lib/modules"
    mv "$out/modules" "$out/lib/modules/$version"
    in_chroot depmod -b "$(inside "$out")" "$version"
}

boot_key=$(key "$(declare -f build_boot unpack_deb)")

# ensure_boot: sets $boot_dir to what is needed to boot $kernel: vmlinuz and lib/modules.
ensure_boot() {
    local binary
    boot_dir=$cache/boot-$kernel-$boot_key
    [[ ! -e $boot_dir ]] || return 0
    fetch "linux-binary-$kernel" "$kernel_version"
    binary=$deb
    fetch "linux-modules-$kernel" "$kernel_version"
    artefact "${boot_dir##*/}" 10 "unpacking Linux $kernel" build_boot "$kernel" "$binary" "$deb"
}

# The debug kernel is built from the same source. A killed build goes on where it was.
build_debug() { # build_debug SOURCE-DEB PATH
    local source=$1 out=$2 option release
    if [[ ! -e $out/unpacked ]]; then
        rm -rf "$out/src"
        mkdir -p "$out/src"
        # shellcheck disable=SC2016
        in_chroot bash -eo pipefail -c 'dpkg-deb --fsys-tarfile "$1" |
            tar -xO --wildcards "./usr/src/linux-source-*.tar.xz" | xz -dc -T0 |
            tar -C "$2" -x --strip-components=1 --no-same-owner --wildcards \
                --exclude="linux-source-*/drivers/gpu/drm/amd/include/*" --exclude="linux-source-*/tools/testing"' - \
            "$(inside "$source")" "$(inside "$out/src")"
        touch "$out/unpacked"
    fi
    cp "$here/lib/debug.config" "$out/src/debug.config"
    make_debug() {
        in_chroot --bind "$out/src" linux nice -n 15 make -C /mnt/linux LLVM=1 "$@"
    }
    if [[ ! -e $out/configured ]]; then
        make_debug KCONFIG_ALLCONFIG=debug.config allnoconfig
        while IFS= read -r option; do
            grep -qxF "$option" "$out/src/.config" || {
                echo "this kernel does not take $option"
                return 1
            }
        done < <(grep '^CONFIG_' "$out/src/debug.config")
        touch "$out/configured"
    fi
    make_debug -j"$(nproc)" bzImage modules
    make_debug -s INSTALL_MOD_PATH=/mnt/linux/installed modules_install
    release=$(cat "$out/src/include/config/kernel.release")
    rm -rf "$out/boot"
    mkdir -p "$out/boot/lib"
    cp "$out/src/arch/x86/boot/bzImage" "$out/boot/vmlinuz"
    mv "$out/src/installed/lib/modules" "$out/boot/lib/modules"
    rm -f "$out/boot/lib/modules/$release"/{build,source}
    # Modules are built against headers, metadata and tools; the objects have done their duty.
    find "$out/src" -name '*.o' ! -path '*/scripts/*' -delete
    echo LLVM=1 >"$out/makeflags"
    echo ok >"$out/verdict"
    echo "$release" >"$out/release"
}

debug_key=debug-$(key "$(declare -f build_debug)" "$chroot_name" "$(cat "$here/lib/debug.config")")

# choose_debug_kernel [VERSION]: as choose_kernel, and $boot_dir as ensure_boot.
choose_debug_kernel() {
    local line name version state reason series
    if [[ -n ${1-} ]]; then
        line=$(kernel_line "$1")
        [[ -n $line ]] || die "there is no kernel '$1' in $backports: 'scripts/vm kernels' lists what is there"
    else
        line=$(kernel_table | awk '$3 == "complete" { print; exit }')
    fi
    read -r name version state reason <<<"$line"
    [[ $state != unusable ]] || die "Linux $name cannot be built: $reason"
    series=${name%%+*}
    kernel_dir=$cache/kernel-$series-$debug_key
    if [[ ! -e $kernel_dir ]]; then
        fetch "linux-source-${series%.*}" "$version"
        resume=1 artefact "${kernel_dir##*/}" 1800 \
            "building the debug kernel $series (it can be interrupted and goes on later)" build_debug "$deb"
    fi
    kernel=$(cat "$kernel_dir/release")
    kernel_version=$version
    boot_dir=$kernel_dir/boot
}
