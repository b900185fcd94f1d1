# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What comes from PyPI, below ~/.cache/libcopy.

# The mpi4py that programs are tested with.
# shellcheck disable=SC2034 # used by those that source this
pypi_mpi4py_version=4.1.2

# pypi_environment NAME PACKAGE==VERSION...: prints the virtual environment NAME of the cache, which has these
# packages and is made once. Fails with a message where they cannot be had.
pypi_environment() { pypi_once environment "$@"; }

# pypi_wheels NAME PACKAGE==VERSION...: the same of a directory with the packages' wheels for this python3, from
# which pip installs without a network (--no-index --find-links).
pypi_wheels() { pypi_once wheels "$@"; }

pypi_make_environment() { # pypi_make_environment PLACE PACKAGE==VERSION...
    python3 -m venv "$1" &&
        "$1/bin/python" -m pip install -q --disable-pip-version-check "${@:2}"
}

pypi_make_wheels() { # pypi_make_wheels PLACE PACKAGE==VERSION...
    mkdir "$1" &&
        python3 -m pip download -q --disable-pip-version-check --only-binary :all: -d "$1" "${@:2}"
}

pypi_once() { # pypi_once KIND NAME PACKAGE==VERSION...
    local kind=$1 place=${XDG_CACHE_HOME:-$HOME/.cache}/libcopy/$2
    shift 2
    mkdir -p "${place%/*}" || return 1
    (
        flock 9
        [[ -e $place/complete ]] && exit
        echo "installing $* from PyPI into $place" >&2
        rm -rf "$place"
        if ! "pypi_make_$kind" "$place" "$@" >&2; then
            rm -rf "$place"
            echo "cannot install $* from PyPI (python3 with venv and pip, and a network are needed)" >&2
            exit 1
        fi
        touch "$place/complete"
    ) 9>"$place.lock" || return 1
    echo "$place"
}
