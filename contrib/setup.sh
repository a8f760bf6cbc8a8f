# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What quickstart, check and .ci/run share: steps with progress, and the installation of what is missing.
# Sourced with `set -euo pipefail`; the caller sets root (the source folder) and steps (how many steps there will be).
# The packages of Python go to .local/venv in the source folder; system packages come from apt.

step_number=0
steps=${steps:-0}
logs=${logs:-$root/build/logs}
venv=$root/.local/venv

say() { printf '%s\n' "$*"; }

# The sentence that a failed step ends with is the second argument: what to do now.
# run_step TITLE ADVICE COMMAND...: the output goes to a log, shown when the command fails.
run_step() {
    local title=$1 advice=$2 log status=0 start=$SECONDS
    shift 2
    step_number=$((step_number + 1))
    mkdir -p "$logs"
    log=$logs/$(printf '%02d' $step_number)-$(tr -cs 'a-zA-Z0-9\n' '-' <<<"$title" | cut -c1-40 | sed 's/-*$//').log
    printf '[%d/%d] %s ' "$step_number" "$steps" "$title"
    "$@" >"$log" 2>&1 &
    local pid=$! tick=0
    while kill -0 $pid 2>/dev/null; do
        sleep 0.2
        tick=$((tick + 1))
        # A dot every 5 seconds: the log of a CI shows that something moves.
        [ $((tick % 25)) -ne 0 ] || printf '.'
    done
    wait $pid || status=$?
    if [ $status -eq 0 ]; then
        printf ' ok (%d s)\n' $((SECONDS - start))
        return 0
    fi
    printf ' FAILED (exit %d)\n\n' $status
    tail -n 25 "$log" | sed 's/^/    /'
    printf '\n    the whole log: %s\n    what to do: %s\n' "$log" "$advice"
    return $status
}

# A step that only says something.
note_step() {
    step_number=$((step_number + 1))
    printf '[%d/%d] %s\n' "$step_number" "$steps" "$*"
}

have_command() { command -v "$1" >/dev/null 2>&1; }
have_module() { have_command pkg-config && pkg-config --exists "$1" 2>/dev/null; }

# need PACKAGE PROBE...: adds the package to `missing` unless the probe succeeds.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

missing_build_packages() {
    missing=()
    need autoconf have_command autoreconf
    need automake have_command automake
    need libtool have_command libtoolize
    need pkg-config have_command pkg-config
    need make have_command make
    need g++ have_command "${CXX:-g++}"
    need python3 have_command python3
    need python3-venv python3 -c 'import ensurepip, venv'
    need libhwloc-dev have_module hwloc
    need libfmt-dev have_module fmt
}

missing_test_packages() {
    missing_build_packages
    need libgtest-dev have_module gtest
    need libgmock-dev have_module gmock
    need libbenchmark-dev have_module benchmark
    need libdw-dev have_module libdw
    need xz-utils have_command xz
}

# Nice to have: a check that lacks its tool is skipped and says so.
missing_check_packages() {
    missing=()
    need clang-format-14 have_command clang-format-14
    need clang-tidy have_command clang-tidy
    need git have_command git
}

# install_packages PACKAGE...: with apt, as root or through sudo; else says the command.
install_packages() {
    [ $# -gt 0 ] || { say "nothing is missing"; return 0; }
    say "missing: $*"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if have_command sudo && sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
        else
            say "Please run:  sudo apt-get install $*"
            return 1
        fi
    fi
    have_command apt-get || { say "This machine has no apt-get. Please install what Debian calls: $*"; return 1; }
    "${as_root[@]}" apt-get update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# As install_packages, but what cannot be had is left out.
install_packages_if_possible() {
    local package
    for package in "$@"; do
        install_packages "$package" || say "going on without $package"
    done
}

# The folder of a package of the virtual environment, or nothing.
venv_package() {
    [ -x "$venv/bin/python3" ] || return 0
    "$venv/bin/python3" -c 'import importlib.util, sys
spec = importlib.util.find_spec(sys.argv[1])
print(next(iter(spec.submodule_search_locations)) if spec else "")' "$1"
}

pip_install() {
    [ -x "$venv/bin/python3" ] || python3 -m venv "$venv"
    "$venv/bin/python3" -m pip install --disable-pip-version-check --no-input "$@"
}

# The CUDA major version to match: the driver's, where there is one.
cuda_major() {
    local version=
    if have_command nvidia-smi; then
        version=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\)\..*/\1/p' | head -n 1)
    fi
    case $version in
        12) echo 12 ;;
        *) echo 13 ;;
    esac
}

install_ucx() {
    [ -n "$(venv_package libucx)" ] || pip_install "libucx-cu$(cuda_major)==1.22.*"
    test -f "$(venv_package libucx)/include/uct/api/uct.h"
}

have_cuda_toolkit() {
    local nvcc
    nvcc=$(command -v nvcc || true)
    [ -z "$nvcc" ] || return 0
    [ -n "${CUDA_HOME:-}" ] && [ -x "$CUDA_HOME/bin/nvcc" ] && return 0
    [ -x /usr/local/cuda/bin/nvcc ]
}

install_cuda() {
    if have_cuda_toolkit; then say "a CUDA toolkit is here"; return 0; fi
    if [ -n "$(venv_package nvidia)" ]; then say "the CUDA packages are in $venv"; return 0; fi
    if [ "$(cuda_major)" = 12 ]; then
        pip_install nvidia-cuda-nvcc-cu12 nvidia-cuda-runtime-cu12
    else
        # The runtime package has cuda.h.
        pip_install 'nvidia-cuda-nvcc==13.*' 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' 'nvidia-nvvm==13.*'
    fi
}

# What configure is told: where the UCX and, without a toolkit, the nvcc of the virtual environment are. Where there is no
# such package, configure searches.
configure_arguments() {
    local ucx cuda
    ucx=$(venv_package libucx)
    cuda=$(venv_package nvidia)
    [ -z "$ucx" ] || printf '%s\n' "--with-ucx=$ucx"
    have_cuda_toolkit || [ -z "$cuda" ] || printf '%s\n' "--with-cuda=$cuda"
}

make_configure() {
    # Again only when it is older than what it is made from.
    if [ -x "$root/configure" ] && [ -z "$(find "$root/configure.ac" "$root/m4" "$root"/*.am "$root"/*/*.am "$root"/*/*/*.am \
            -newer "$root/configure" 2>/dev/null)" ]; then
        say "configure is up to date"
        return 0
    fi
    "$root/autogen.sh"
}

# configure_in FOLDER [ARGUMENT...]: unless it is configured so already.
configure_in() {
    local folder=$1
    shift
    mkdir -p "$folder"
    local arguments wanted module modules=
    mapfile -t arguments < <(configure_arguments)
    # What configure looks for by itself: a library that was installed since then is to be found.
    for module in hwloc fmt gtest gmock benchmark libdw; do
        ! have_module $module || modules="$modules $module"
    done
    wanted="$(printf '%s\n' "${arguments[@]}" "$@" "CXX=${CXX:-}" "CC=${CC:-}" "$modules")"
    if [ -f "$folder/config.status" ] && [ "$folder/config.status" -nt "$root/configure" ] &&
        [ "$(cat "$folder/configured-with" 2>/dev/null)" = "$wanted" ]; then
        say "$folder is configured"
        return 0
    fi
    (cd "$folder" && "$root/configure" "${arguments[@]}" "$@")
    printf '%s\n' "$wanted" > "$folder/configured-with"
}

jobs() { nproc 2>/dev/null || echo 2; }
