# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Copy engines for the guest: the model (tests/ioat), its place on the PCI bus, and the kernel's own
# test client for dmaengine, which Debian does not ship. Part of scripts/vm.

# ensure_ioat: sets $ioat_model to the program of this checkout.
ensure_ioat() {
    if ! command -v cargo >/dev/null && [[ -f $HOME/.cargo/env ]]; then
        # shellcheck source=/dev/null
        . "$HOME/.cargo/env"
    fi
    command -v cargo >/dev/null ||
        die --status 118 "--ioat builds tests/ioat, but cargo is missing; install Rust with rustup (https://rustup.rs)"
    local messages
    messages=$(mktemp)
    # shellcheck disable=SC2016
    step 5 "building tests/ioat, the model of the copy engines (the first time: about 60 s)" "$cache/log/ioat.log" \
        bash -c 'cd "$1" && exec cargo build --release -p ioat-model --message-format=json-render-diagnostics >"$2"' - \
        "$checkout" "$messages"
    ioat_model=$(sed -n 's/.*"name":"ioat-model".*"executable":"\([^"]*\)".*/\1/p' "$messages" | tail -n 1)
    rm -f "$messages"
    [[ -x $ioat_model ]] || die --status 118 "cargo did not say where it put ioat-model (see $cache/log/ioat.log)"
}

build_dmatest() { # build_dmatest SOURCE KERNEL-DIR FLAGS PATH
    local source=$1 dir=$2 flags=$3 out=$4
    mkdir -p "$out/module"
    case $source in
    *.deb)
        # shellcheck disable=SC2016
        in_chroot bash -eo pipefail -c 'dpkg-deb --fsys-tarfile "$1" |
            tar -xO --wildcards "./usr/src/linux-source-*.tar.xz" | xz -dc -T0 |
            tar -C "$2" -x --no-same-owner --strip-components=3 --wildcards "linux-source-*/drivers/dma/dmatest.c"' - \
            "$(inside "$source")" "$(inside "$out/module")"
        ;;
    *) cp "$source" "$out/module/dmatest.c" ;;
    esac
    echo 'obj-m := dmatest.o' >"$out/module/Kbuild"
    in_chroot --bind "$dir/src" linux --bind "$out/module" module \
        make -C /mnt/linux "$flags" M=/mnt/module modules
    mv "$out/module/dmatest.ko" "$out/"
    rm -rf "$out/module"
}

# ensure_dmatest: sets $dmatest to the kernel's dmatest.ko, built for $kernel from its own source, or
# to nothing when that source cannot be had any more.
ensure_dmatest() {
    local name source flags="LOCALVERSION=+${kernel#*+}" series=${kernel%%+*}
    name=dmatest-$kernel-$(key "$(declare -f build_dmatest)" "${kernel_dir##*/}")
    dmatest=$cache/$name/dmatest.ko
    [[ ! -e $dmatest ]] || return 0
    if [[ -e $kernel_dir/makeflags ]]; then
        source=$kernel_dir/src/drivers/dma/dmatest.c
        flags=$(head -n 1 "$kernel_dir/makeflags")
    elif [[ $kernel_version == - ]]; then
        say "the source of Linux $kernel is not in the index any more: no dmatest"
        dmatest=''
        return
    else
        fetch "linux-source-${series%.*}" "$kernel_version"
        source=$deb
    fi
    artefact "$name" 25 "building the kernel's dmatest for Linux $kernel" build_dmatest "$source" "$kernel_dir" "$flags"
}

# start_ioat RUN: starts the model and sets $ioat_args, which show its functions to QEMU. An engine
# is a root port with one slot, a channel is one function in it; with --numa the root ports of a node
# hang on a host bridge of that node, as on a machine with an engine in each processor.
start_ioat() {
    local run=$1 engines=${ioat%%x*} channels=${ioat#*x} engine channel bus line='' device
    channels=${channels%%,*}
    mkdir -m 700 "$run/ioat"
    cp "$ioat_model" "$run/ioat-model"
    [[ -z $dmatest ]] || cp "$dmatest" "$run/dmatest.ko"
    # From inside the directory, because a socket's path must be short.
    exec {ioat_output}< <(cd "$run/ioat" && exec "$run/ioat-model" serve --engines "$ioat" --directory . 2>"$run/ioat.log")
    ioat_pid=$!
    read -r -t 30 -u "$ioat_output" line || true
    if [[ $line != ready ]]; then
        sed 's/^/    | /' "$run/ioat.log" >&2
        die --status 119 "the model of the copy engines did not start"
    fi
    ioat_args=()
    if ((numa)); then
        for ((bus = 0; bus < numa; bus++)); do
            ioat_args+=(-device "pxb-pcie,id=node$bus,bus_nr=$((64 + 128 / numa * bus)),numa_node=$bus,bus=pcie.0")
        done
    fi
    for ((engine = 0; engine < engines; engine++)); do
        bus=pcie.0
        ((!numa)) || bus=node$((engine % numa))
        ioat_args+=(-device "pcie-root-port,id=engine$engine,bus=$bus,chassis=$((engine + 1))")
        for ((channel = 0; channel < channels; channel++)); do
            printf -v device '{"driver":"vfio-user-pci","bus":"engine%d","addr":"0.%d","multifunction":true,"socket":{"type":"unix","path":"%s/%d.%d"}}' \
                "$engine" "$channel" "$(inside "$run/ioat")" "$engine" "$channel"
            ioat_args+=(-device "$device")
        done
    done
}

# stop_ioat: it ends by itself when QEMU does; this is for when QEMU never got so far.
stop_ioat() {
    kill "$ioat_pid" 2>/dev/null || true
    wait "$ioat_pid" 2>/dev/null || true
    exec {ioat_output}<&-
}
