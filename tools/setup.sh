#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prepares a Debian or Ubuntu machine: system packages, then .venv with the pinned Python packages.
#
#   tools/setup.sh --build    what building the command line needs: system packages alone
#   tools/setup.sh --python   the system packages that .venv needs
#   tools/setup.sh --torch    PyTorch in .venv, whose LibTorch the lab is built with
#   tools/setup.sh --has-torch  nothing: whether PyTorch is there is the exit status
#   tools/setup.sh            what testing, formatting and the Python package need
#   tools/setup.sh --peers    the same, and what tests compare the lab with
#   tools/setup.sh --fuzz     the same, and a clang with libFuzzer
#   tools/setup.sh --cuda     the same, and nvcc: the machine's own, or one from pip in .venv/cuda
#
# Safe to repeat: with nothing to do it returns in well under a second.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly requirements=python/requirements-dev.txt
readonly torch_requirements=python/requirements-torch.txt
readonly packages=tools/packages-debian.txt
readonly python_packages=tools/packages-debian-python.txt
readonly test_packages=tools/packages-debian-test.txt
readonly peers_requirements=tools/requirements-peers.txt
readonly cuda_requirements=tools/requirements-cuda.txt
readonly venv=.venv

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Prints those of the given packages that dpkg does not report as installed.
missing_packages() {
  local installed
  # dpkg-query fails when any name is unknown, but still lists the others.
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  local package
  for package in "$@"; do
    grep -qxF "$package installed" <<<"$installed" || printf '%s\n' "$package"
  done
}

# Runs apt-get as root: directly, or through sudo.
as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  else
    sudo "$@"
  fi
}

install_packages() {
  local names=("$@")
  if [[ $EUID -ne 0 ]] && ! command -v sudo >/dev/null; then
    die "needs root to install: apt-get install ${names[*]}"
  fi
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
  local install=("${apt[@]}" install --no-install-recommends "${names[@]}")
  # The index is refreshed only where it is absent or names a version that is gone.
  local package
  for package in "${names[@]}"; do
    if ! apt-cache show "$package" >/dev/null 2>&1; then
      say "refreshing the package index"
      as_root "${apt[@]}" update
      break
    fi
  done
  say "installing ${names[*]}"
  if ! as_root "${install[@]}"; then
    say "trying again with a fresh package index"
    as_root "${apt[@]}" update
    as_root "${install[@]}" || die "apt-get could not install: ${names[*]}"
  fi
}

# setup_packages FILES...: the packages that the files list.
setup_packages() {
  local wanted
  mapfile -t wanted < <(grep -hEv '^[[:space:]]*(#|$)' "$@")
  if ! command -v apt-get >/dev/null; then
    say "no apt-get here; the equivalents of these packages are needed: ${wanted[*]}"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  if ((${#missing[@]})); then
    install_packages "${missing[@]}"
  fi
}

# A clang that can link libFuzzer and knows std::source_location (16 or later).
setup_fuzz() {
  if tools/find_fuzz_clang.sh >/dev/null; then
    return
  fi
  command -v apt-get >/dev/null || die "fuzzing needs clang 16 or later with its compiler-rt"
  local version
  for version in 19 18 17 16; do
    if apt-cache show "libclang-rt-$version-dev" >/dev/null 2>&1; then
      install_packages "clang-$version" "libclang-rt-$version-dev"
      tools/find_fuzz_clang.sh >/dev/null || die "clang-$version does not link libFuzzer"
      return
    fi
  done
  die "no packaged clang of version 16 or later; install one with its compiler-rt"
}

# Prints the first Python that is new enough and can make a virtual environment.
find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" /usr/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' \
      >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "needs Python 3.10 or later with venv (Debian package python3-venv); set PYTHON to one"
}

# pip_install ARGUMENTS...: into .venv, without the bytecode that pip would write on one core.
pip_install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}

# Bytecode of every package that has none yet, on every core.
compile_packages() {
  "$venv/bin/python" -m compileall -qq -j 0 "$venv"/lib/python3*/site-packages || true
}

make_venv() {
  if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    return
  fi
  local python
  python=$(find_python)
  say "creating $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
}

# A stamp's name holds the hash of the pins, so a changed pin reinstalls.
pins_hash() { cat "$@" | sha256sum | cut -c1-16; }

# has_packages STAMP: whether what the stamp stands for was installed into this .venv.
has_packages() { [[ -e $1 ]] && "$venv/bin/python" -c '' 2>/dev/null; }

setup_venv() {
  local stamp
  stamp=$venv/.installed-$(pins_hash "$torch_requirements" "$requirements")
  if has_packages "$stamp"; then
    return
  fi
  make_venv
  say "installing the pinned packages of $requirements into $venv"
  rm -f "$venv"/.installed-*
  pip_install -r "$requirements"
  compile_packages
  touch "$stamp"
}

torch_stamp() { printf '%s\n' "$venv/.torch-$(pins_hash "$torch_requirements")"; }

has_torch() {
  has_packages "$(torch_stamp)" ||
    has_packages "$venv/.installed-$(pins_hash "$torch_requirements" "$requirements")"
}

# PyTorch as a library for C++: what Python alone needs of it, and bytecode, come with the rest.
setup_torch() {
  if has_torch; then
    return
  fi
  make_venv
  say "installing the pinned packages of $torch_requirements into $venv"
  rm -f "$venv"/.torch-*
  pip_install -r "$torch_requirements"
  touch "$(torch_stamp)"
}

# What the lab's models are compared with. Not needed to build or to train: a machine that cannot
# have it is told once, and skips those tests.
setup_peers() {
  local stamp
  stamp=$venv/.peers-$(pins_hash "$peers_requirements")
  if [[ -e $stamp ]]; then
    return
  fi
  say "installing the pinned packages of $peers_requirements into $venv"
  rm -f "$venv"/.peers-*
  if ! pip_install -r "$requirements" -r "$peers_requirements"; then
    say "pip could not install them; tests against transformers and tensorboard, and those of" \
      "rode sweep, will skip (to try again: rm $stamp)"
  fi
  compile_packages
  touch "$stamp"
}

# A compiler for the kernels. The packages from pip lack two names that a toolkit has and that
# CMake and nvcc look for: lib64, and the runtime's library without its version.
setup_cuda() {
  if tools/find_nvcc.sh >/dev/null; then
    return
  fi
  local root=$venv/cuda/nvidia/cu13
  say "no nvcc of CUDA 12.0 or later here; installing the packages of $cuda_requirements"
  rm -rf "$venv/cuda"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    --target "$venv/cuda" -r "$cuda_requirements" ||
    die "pip has no nvcc for this machine; install NVIDIA's CUDA toolkit (12.0 or later) and set" \
      "CUDACXX to its nvcc"
  ln -sfn lib "$root/lib64"
  ln -sfn libcudart.so.13 "$root/lib/libcudart.so"
  tools/find_nvcc.sh >/dev/null || die "the nvcc in $root does not run on this machine"
}

# One statement per step: errexit does not act inside an && list.
case "${1:-}" in
  --has-torch)
    has_torch
    exit
    ;;
  --build) setup_packages "$packages" ;;
  --python) setup_packages "$python_packages" ;;
  --torch) setup_torch ;;
  '' | --peers | --fuzz | --cuda)
    setup_packages "$packages" "$python_packages" "$test_packages"
    setup_venv
    ;;
  *) die "unknown argument '$1'; expected none, --build, --python, --torch, --has-torch, --peers," \
    "--fuzz or --cuda" ;;
esac
case "${1:-}" in
  --peers) setup_peers ;;
  --fuzz) setup_fuzz ;;
  --cuda) setup_cuda ;;
esac
say "ready"
