# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The guest: its root image, its initramfs, and QEMU. Part of scripts/vm.

guest_packages=(bash coreutils procps util-linux iproute2 kmod findutils grep sed gawk less psmisc
    strace openmpi-bin mpich libibverbs1 ibverbs-providers uidmap ncurses-term libc6)

build_guest() { # build_guest PATH
    local work=$1.d proxy=()
    if [[ -n ${http_proxy-} ]]; then
        proxy=(--aptopt="Acquire::http::Proxy \"$http_proxy\"")
    fi
    rm -rf "$work"
    # shellcheck disable=SC2016
    mmdebstrap --mode=root --variant=important --format=directory --aptopt='Acquire::Retries "3"' \
        --aptopt='APT::Install-Recommends "false"' "${proxy[@]}" \
        --include="$(IFS=, && echo "${guest_packages[*]}")" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash tester' \
        --customize-hook='chroot "$1" useradd --create-home --uid 1001 --shell /bin/bash other' \
        --customize-hook='echo libcopy-vm >"$1/etc/hostname"' \
        --customize-hook='echo "127.0.0.1 localhost libcopy-vm" >"$1/etc/hosts"' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/usr/include "$1"/usr/share/info' \
        --customize-hook='rm -f "$1"/usr/lib/x86_64-linux-gnu/*.a' \
        "$suite" "$work" "deb $mirror $suite main"
    rm -rf "${work:?}"/dev/*
    # Not compressed: an emulated CPU reads from disk faster than it inflates.
    in_chroot mkfs.erofs -T0 --quiet "$(inside "$1")" "$(inside "$work")"
    rm -rf "$work"
}

guest_image=$cache/guest-$(key "$(declare -f build_guest)" "$mirror" "${guest_packages[@]}").erofs

# use_packages PACKAGE...: has the guest's image be another one, which has these packages, too.
use_packages() {
    guest_packages+=("$@")
    guest_image=${guest_image%.erofs}-$(key "$@").erofs
}

ensure_guest() {
    artefact "${guest_image##*/}" 90 "making the guest's root file system (Open MPI and MPICH included)" build_guest
}

# What the initramfs loads, in this order; a kernel that has one of them built in is fine.
boot_modules=(virtio_blk erofs overlay 9pnet_virtio 9p virtio_rng)

build_initramfs() { # build_initramfs VERSION BOOT-DIR PATH
    local version=$1 boot=$2 out=$3 work=$3.d file
    rm -rf "$work"
    mkdir -p "$work"/{bin,dev,etc,proc,sys,lower,upper,root,modules}
    cp "$cache/$chroot_name/bin/busybox" "$work/bin/"
    for file in sh mount insmod mkdir switch_root poweroff cat echo; do
        ln -s busybox "$work/bin/$file"
    done
    cp "$here/lib/guest-initramfs" "$work/init"
    chmod 755 "$work/init"
    if [[ -d $boot/lib/modules/$version ]]; then
        # The order comes from modprobe; inflating is cheaper here than on an emulated CPU.
        local name line
        for name in "${boot_modules[@]}"; do
            in_chroot modprobe -d "$(inside "$boot")" -S "$version" --show-depends "$name"
        done | while read -r line file _; do
            [[ $line == insmod ]] || continue
            file=$cache${file#/mnt/cache}
            name=${file##*/}
            name=${name%.xz}
            [[ ! -e $work/modules/$name ]] || continue
            case $file in
            *.xz) in_chroot xz -dc "$(inside "$file")" >"$work/modules/$name" ;;
            *) cp "$file" "$work/modules/$name" ;;
            esac
            echo "$name" >>"$work/modules/order"
        done
    fi
    touch "$work/modules/order"
    # shellcheck disable=SC2016
    in_chroot sh -ec 'cd "$1"; find . | LC_ALL=C sort | cpio -o -H newc --quiet >"$2"' - "$(inside "$work")" "$(inside "$out")"
    rm -rf "$work"
}

ensure_initramfs() {
    local name
    name=initramfs-$kernel-$(key "$(declare -f build_initramfs)" "${boot_modules[*]}" "$boot_dir" "$chroot_name" \
        "$(cat "$here/lib/guest-initramfs")").cpio
    artefact "$name" 5 "making the initramfs for Linux $kernel" build_initramfs "$kernel" "$boot_dir"
    initramfs=$cache/$name
}

build_tsc_khz() { # build_tsc_khz PATH
    cp "$here/lib/tsc-khz.c" "$1.c"
    in_chroot gcc -O2 -static -o "$(inside "$1")" "$(inside "$1.c")"
    rm "$1.c"
}

# What an emulated guest is told of its clock, since it may be wrong about it (see tsc-khz.c).
# Without an answer it measures as always.
clock_hint() {
    local name khz
    name=tsc-khz-$(key "$(cat "$here/lib/tsc-khz.c")" "$chroot_name")
    artefact "$name" 2 "making the program that measures the time stamp counter" build_tsc_khz
    khz=$("$cache/$name") || return 0
    [[ $khz =~ ^[1-9][0-9]{5,7}$ ]] || return 0
    append="tsc_early_khz=$khz $append"
}

# What the kernel says when something is wrong. A report is a failure whatever the command says.
kernel_reports='WARNING: |BUG: |BUG at |Oops|Kernel panic|general protection fault|KASAN|UBSAN|KFENCE|kernel BUG|INFO: (task|rcu|possible|suspicious|trying|lockdep)|rcu: INFO|possible (circular|recursive|irq|deadlock)|inconsistent lock state|suspicious RCU|DMA-API: .*(device driver|exceeded|debugging out)|kmemleak: [0-9]+ new suspected|unreferenced object|refcount_t: |list_(add|del) corruption|stack segment|double fault|soft lockup|cut here|Unable to handle|bad page state|Bad page'

# run_guest: boots $kernel with the options in the variables named below and gives back, in
# $guest_status, what the command returned, or a status of our own.
#   accel cpus mem numa ioat timeout interactive use_module image params shares extra_env qemu_args append cmd
run_guest() {
    local run=$1 status=0 args=() same=0 index root_image
    root_image=$(inside "$guest_image")
    local binds=(--bind "$run" rw/run --bind "$checkout" ro/checkout)
    if [[ -n $image ]]; then
        root_image=/mnt/image/${image##*/}
        binds+=(--bind "${image%/*}" image)
    fi
    mkdir -p "$run"
    : >"$run/serial.log"
    : >"$run/status"

    # The checkout is at the same path in the guest; so are the exchange directories.
    {
        printf 'checkout=%q\n' "$checkout"
        printf 'shares=('
        printf '%q ' "${shares[@]}"
        printf ')\nparams=('
        printf '%q ' "${params[@]}"
        printf ')\ncmd=('
        printf '%q ' "${cmd[@]}"
        printf ')\nenvironment=('
        printf '%q ' "LIBCOPY_VM=$accel" "${extra_env[@]}"
        printf ')\n'
        printf 'interactive=%q\nuse_module=%q\nversion=%q\nioat=%q\n' "$interactive" "$use_module" "$kernel" "$ioat"
        printf 'systemd=%q\n' "$([[ -z $image ]] || echo 1)"
        printf 'terminal=%q\n' "${TERM:-dumb}"
        printf 'size=%q\n' "$({ stty size <&0; } 2>/dev/null || true)"
    } >"$run/config"
    cp "$here/lib/guest-init" "$run/init"
    chmod 755 "$run/init"
    if ((use_module)); then
        cp "$module" "$run/libcopy.ko"
    fi
    if [[ /proc/self/fd/1 -ef /proc/self/fd/2 ]]; then
        same=1
        echo same=1 >>"$run/config"
    fi

    args=(-nodefaults -no-user-config -display none -no-reboot
        -kernel "$(inside "$boot_dir/vmlinuz")" -initrd "$(inside "$initramfs")"
        -append "console=ttyS0 quiet nokaslr initcall_blacklist=load_system_certificate_list loglevel=5 panic=-1 oops=panic hugepages=64 tsc=reliable no_timer_check random.trust_cpu=on rcupdate.rcu_cpu_stall_timeout=120 watchdog_thresh=60 $append"
        -serial "file:$(inside "$run/serial.log")"
        -device virtio-rng-pci
        -drive "file=$root_image,if=none,id=root,format=raw,readonly=on,file.locking=off"
        -device "virtio-blk-pci,drive=root"
        -device virtio-serial-pci
        -chardev "file,id=status,path=$(inside "$run/status")"
        -device "virtserialport,chardev=status,nr=1"
        -chardev "file,id=log,path=$(inside "$run/kernel.log")"
        -device "virtserialport,chardev=log,nr=2")
    case $accel in
    kvm) args+=(-accel kvm -cpu host) ;;
    # Without ERMS and FSRM the guest copies with vector moves or quadwords; with them it uses
    # "rep movsb", which the emulator executes byte by byte.
    tcg) args+=(-accel "tcg,thread=multi" -cpu "max,-erms,-fsrm") ;;
    icount) args+=(-accel "tcg,thread=single" -cpu "max,-erms,-fsrm" -icount "shift=0") ;;
    esac
    # Guest memory is shared, so that a device in another process can be added.
    if ((numa)); then
        local node other per=$(((cpus + numa - 1) / numa)) share=$((mem / numa))
        # A socket each: of several nodes in one the kernel warns, as QEMU has one last-level cache for them.
        args+=(-machine q35 -m "$((share * numa))"
            -smp "$cpus,sockets=$numa,cores=$per,threads=1,maxcpus=$((per * numa))")
        for ((node = 0; node < numa; node++)); do
            args+=(-object "memory-backend-memfd,id=m$node,size=${share}M,share=on"
                -numa "node,nodeid=$node,cpus=$((per * node))-$((per * (node + 1) - 1)),memdev=m$node")
        done
        for ((node = 0; node < numa; node++)); do
            for ((other = node + 1; other < numa; other++)); do
                args+=(-numa "dist,src=$node,dst=$other,val=21")
            done
        done
    else
        args+=(-machine "q35,memory-backend=mem" -smp "$cpus" -m "$mem"
            -object "memory-backend-memfd,id=mem,size=${mem}M,share=on")
    fi
    # Two devices carry all directories of the host: one that only reads and one that also writes.
    if [[ -d $boot_dir/lib/modules ]]; then
        binds+=(--bind "$boot_dir/lib/modules" ro/modules)
    fi
    for index in "${!shares[@]}"; do
        binds+=(--bind "${shares[index]}" "rw/share$index")
    done
    args+=(-fsdev "local,id=ro,path=/mnt/ro,security_model=none,multidevs=remap,readonly=on"
        -device "virtio-9p-pci,fsdev=ro,mount_tag=ro"
        -fsdev "local,id=rw,path=/mnt/rw,security_model=none,multidevs=remap"
        -device "virtio-9p-pci,fsdev=rw,mount_tag=rw")

    local out_pid='' err_pid=''
    if ((interactive)); then
        args+=(-chardev "stdio,id=terminal,signal=off" -device "virtconsole,chardev=terminal")
    else
        # QEMU wants names, not descriptors; fifos also keep it from caring what our stdout is.
        rm -f "$run/out" "$run/err"
        mkfifo "$run/out" "$run/err"
        cat "$run/out" &
        out_pid=$!
        args+=(-chardev "file,id=out,path=$(inside "$run/out")" -device "virtserialport,chardev=out,nr=3")
        if ((!same)); then
            cat "$run/err" >&2 &
            err_pid=$!
            args+=(-chardev "file,id=err,path=$(inside "$run/err")" -device "virtserialport,chardev=err,nr=4")
        fi
    fi
    if [[ -n $ioat ]]; then
        start_ioat "$run"
        args+=("${ioat_args[@]}")
    fi
    args+=("${qemu_args[@]}")

    local limit=(timeout --foreground --kill-after=5 "$timeout") input=/dev/null
    if ((interactive)); then
        limit=()
        input=/dev/stdin
    fi
    "${limit[@]}" unshare --mount "$here/lib/enter-chroot" "$cache/$chroot_name" --bind "$cache" cache "${binds[@]}" \
        qemu-system-x86_64 "${args[@]}" <"$input" 2>"$run/qemu.log" || status=$?
    if [[ -n $out_pid ]]; then
        # Opening and closing a fifo ends its reader, should QEMU never have opened it.
        : <>"$run/out"
        : <>"$run/err"
        wait "$out_pid" $err_pid || true
    fi
    [[ -z $ioat ]] || stop_ioat
    if ((status == 124 || status == 137)) && ((!interactive)); then
        guest_status=124
    elif ((status)); then
        sed 's/^/    | /' "$run/qemu.log" >&2
        say "QEMU failed (status $status)"
        guest_status=119
    else
        guest_status=$(sed -n 's/^exit //p' "$run/status" | tail -n 1)
        [[ -n $guest_status ]] || guest_status=121
    fi
}

# guest_verdict RUN LOG: says what went wrong beside the command itself and sets $guest_status.
guest_verdict() {
    local run=$1 log=$2 reports
    if [[ -s $run/dmesg ]]; then
        cp "$run/dmesg" "$log"
    else
        cat "$run/kernel.log" "$run/serial.log" 2>/dev/null | tr -d '\r' >"$log"
    fi
    reports=$(tr -d '\r' <"$run/serial.log" | grep -nE "$kernel_reports" | head -n 1 || true)
    if [[ -z $reports ]]; then
        reports=$(grep -nE "$kernel_reports" "$log" | head -n 1 || true)
    fi
    local booted=1
    grep -q '^ready' "$run/status" || booted=0
    if [[ -n $reports ]]; then
        say "the kernel reported a problem:"
        { if [[ -s $run/serial.log ]]; then tr -d '\r' <"$run/serial.log"; else cat "$log"; fi; } |
            grep -E -m 1 -B 2 -A 60 "$kernel_reports" | sed 's/^/    | /' >&2 || true
        case $guest_status in
        121) say "the guest died of it" ;;
        124) say "the guest was stopped after $timeout s" ;;
        *) say "the command itself ended with status $guest_status" ;;
        esac
        say "whole kernel log: $log"
        guest_status=120
    elif ((guest_status == 124)); then
        if ((booted)); then
            say "the command did not end within $timeout s (--timeout): the guest was stopped; kernel log: $log"
        else
            say "the guest did not boot within $timeout s (--timeout) and was stopped; kernel log: $log"
        fi
        tail -n 15 "$log" | sed 's/^/    | /' >&2
    elif ((guest_status == 121)); then
        say "the guest ended without a status; kernel log: $log"
        tail -n 15 "$log" | sed 's/^/    | /' >&2
    elif ((guest_status == 119)); then
        say "kernel log: $log"
    fi
}

# Some hosts offer a /dev/kvm that cannot run a stock kernel, so a boot has to prove it first.
choose_accel() {
    accel=tcg
    [[ -w /dev/kvm ]] || return 0
    local known
    known=$cache/kvm-$(key "$(uname -rv)" "$chroot_name" "$(sed -n 's/^model name.*: //p;T;q' /proc/cpuinfo)")
    if [[ ! -e $known ]]; then
        local held
        lock held kvm
        if [[ ! -e $known ]]; then
            say "probing /dev/kvm (at most 20 s)"
            local answer=no which=(--kernel "$kernel")
            ((!debug)) || which=(--debug)
            if bash "$here/vm" __probe "${which[@]}" >"$cache/log/kvm.log" 2>&1; then
                answer=yes
            fi
            echo "$answer" >"$cache/tmp/kvm.answer"
            mv "$cache/tmp/kvm.answer" "$known"
            [[ $answer == yes ]] || say "    /dev/kvm cannot run Linux $kernel: emulating (remembered; see $cache/log/kvm.log)"
        fi
        unlock held
    fi
    [[ $(cat "$known") == no ]] || accel=kvm
}
