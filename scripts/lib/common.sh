# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Messages and progress for the scripts of this directory. Everything said here goes to stderr, so
# that stdout belongs to the command that a script runs.

say() {
    printf '%s: %s\n' "${program:-libcopy}" "$*" >&2
}

die() {
    local status=1
    if [[ $1 == --status ]]; then
        status=$2
        shift 2
    fi
    say "$*"
    exit "$status"
}

# ticker SECONDS: shows that a long step is alive, on a terminal every second, in a log rarely. It
# waits with read and not with sleep: a sleep that outlives its parent would keep our locks.
ticker() {
    local begin=$SECONDS never pause=60
    exec {never}<> <(:)
    [[ ! -t 2 ]] || pause=1
    while true; do
        read -r -t "$pause" -u "$never" || true
        if [[ -t 2 ]]; then
            printf '\r    %d s of about %s s ' "$((SECONDS - begin))" "$1" >&2
        else
            printf '    ... %d s of about %s s\n' "$((SECONDS - begin))" "$1" >&2
        fi
    done
}

# step SECONDS TEXT LOGFILE COMMAND...: runs COMMAND with its output in LOGFILE, says what is going
# on, how long it should take and how long it took, and shows the end of the log when it fails.
# It must not be called in a condition: bash would then ignore errors inside COMMAND.
step() {
    local seconds=$1 text=$2 log=$3 begin=$SECONDS status=0 tick=
    shift 3
    mkdir -p "${log%/*}"
    say "$text (about $seconds s)"
    (
        set -e
        "$@"
    ) >"$log" 2>&1 </dev/null &
    local pid=$!
    if ((seconds > 5)); then
        ticker "$seconds" &
        tick=$!
    fi
    wait "$pid" || status=$?
    if [[ -n $tick ]]; then
        kill "$tick" 2>/dev/null || true
        wait "$tick" 2>/dev/null || true
        [[ ! -t 2 ]] || printf '\r%40s\r' '' >&2
    fi
    if ((status)); then
        tail -n 40 "$log" | sed 's/^/    | /' >&2
        die --status "${step_failure:-1}" "failed: $text (whole log: $log)"
    fi
    if ((seconds > 5)); then
        say "    done in $((SECONDS - begin)) s"
    fi
}

# need COMMAND PACKAGE: installs PACKAGE when COMMAND is missing, if that gives no other package another upstream version.
need() {
    command -v "$1" >/dev/null && return
    # shellcheck source=/dev/null
    . "${BASH_SOURCE[0]%/*}/packages.sh"
    local sudo=()
    ((EUID == 0)) || sudo=(sudo)
    command -v apt-get >/dev/null || die "'$1' is missing; please install it"
    say "'$1' is missing: installing the package '$2'"
    "${sudo[@]}" apt-get -qq update >&2 || die "cannot install '$2'; please install it by hand"
    may_install "$2" || die "cannot install '$2'; please install it by hand"
    "${sudo[@]}" apt-get -qq install -y --no-upgrade "$2" >&2 || die "cannot install '$2'; please install it by hand"
}
