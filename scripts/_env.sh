# Sourced by the scripts beside it: makes .venv in the project's root and keeps it fit for what setup.cfg says.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"
#   prepare examples          # afterwards $root/.venv holds zfabric and the named extra
#
# Nothing is assumed but bash, the core utilities and a Python of at least 3.11. What is said goes to stderr, so that stdout is
# the program's alone. Two scripts may run at once: preparation holds a lock on the root directory, the program does not.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv

say() { printf 'zfabric: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# The newest usable interpreter. Each is asked, since a name on PATH may be a shim for a version that is not there.
find_python() {
  local best='' best_version=0 candidate version
  for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3; do
    version=$("$candidate" -c 'import sys; print(sys.version_info[0] * 1000 + sys.version_info[1])' 2>/dev/null) || continue
    [[ $version =~ ^[0-9]+$ ]] || continue
    if ((version >= 3011 && version > best_version)); then
      best=$candidate best_version=$version
    fi
    [ "$candidate" = "${PYTHON:-}" ] && [ -n "$best" ] && break
  done
  [ -n "$best" ] || return 1
  printf '%s\n' "$best"
}

# A bare machine of a build service is ours to furnish; anybody else's is not.
may_install() { [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
  say "installing $*"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@"; } >&2 </dev/null
}

# Three ways to a virtual environment with pip: the interpreter's own, the system's pip, the system's package.
make_venv() {
  local python version
  if ! python=$(find_python); then
    may_install && apt_install python3 python3-venv
    python=$(find_python) || fail "no Python 3.11 or newer on PATH; on Debian: apt-get install python3 python3-venv"
  fi
  version=$("$python" -c 'import platform; print(platform.python_version())')
  say "making ${venv##*/} with Python $version"
  rm -rf -- "$venv"
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if "$python" -m venv --without-pip -- "$venv" 2>/dev/null &&
      "$python" -m pip --python "$venv/bin/python" install -qq pip >&2 2>/dev/null; then
      return
    fi
    rm -rf -- "$venv"
    local packages="python3-venv python${version%.*}-venv"
    may_install && { apt_install $packages || apt_install python3-venv || true; }
    "$python" -c 'import ensurepip' 2>/dev/null || fail "this Python cannot make virtual environments; on Debian: apt-get install python3-venv"
  fi
  "$python" -m venv -- "$venv" >&2
}

# What an installed extra depends on: the lists of dependencies, and where the tree lies (an editable install names the place).
fingerprint() { { printf '%s\n' "$root"; cat -- "$root/setup.cfg" "$root/pyproject.toml"; } | sha256sum | cut -d ' ' -f 1; }

installed() { [ -x "$venv/bin/zfabric" ] && [ "$(cat -- "$venv/installed-$1" 2>/dev/null)" = "$2" ]; }

prepare_locked() {
  local extras=$1 stamp=$2
  installed "$extras" "$stamp" && return
  # An environment that was moved with its tree still runs, but its scripts point to where it was.
  if ! "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    ! grep -qsF -- "$venv" "$venv/bin/activate"; then
    make_venv
  fi
  say "installing zfabric[$extras] into ${venv##*/}"
  # As a plain path: the other way costs each interpreter that starts 10 ms of CPU time, and the tests start hundreds.
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --config-settings editable_mode=compat --editable "$root[$extras]" \
    >&2 </dev/null ||
    fail "the installation failed; what pip said stands above"
  printf '%s\n' "$stamp" >"$venv/installed-$extras"
}

prepare() {
  local stamp
  stamp=$(fingerprint)
  # The lock's descriptor lives in the subshell only: the program must not inherit it.
  installed "$1" "$stamp" || (
    if command -v flock >/dev/null; then flock 9; fi
    prepare_locked "$1" "$stamp"
  ) 9<"$root"
}
