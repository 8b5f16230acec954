# Part of hack/images: downloads and builds the wheels that the images install.

# Prints an interpreter that has the module $1: HOST_PYTHON or the one of the checkout, else python3. An environment
# that uv made does not have pip.
host_python() {
  local python=${HOST_PYTHON:-.venv/bin/python}
  "$python" -m "$1" --help >/dev/null 2>&1 && echo "$python" || echo python3
}

# Sets python and platforms for pip download. The interpreter of the base usually differs from that of this machine.
find_python() {
  local machine facts
  facts=$("$engine" run --rm --network none --entrypoint python3 "$base" -c \
    'import os, sys; print("%d.%d" % sys.version_info[:2], os.uname().machine, os.confstr("CS_GNU_LIBC_VERSION"))') \
    || { say "$base has no python3 with the GNU C library"; return 1; }
  read -r python machine _ libc <<<"$facts"
  platforms=()
  # The tag of a wheel contains the oldest C library that it runs with.
  for minor in $(seq "${libc#2.}" -1 5); do
    platforms+=(--platform "manylinux_2_${minor}_$machine")
  done
  platforms+=(--platform "manylinux2014_$machine" --platform "linux_$machine")
}

# Prints a directory with the wheels of a requirements file for the base's Python.
fetch_wheels() {
  local wheels
  wheels=$cache/wheels-$({ cat "$1"; echo "$python ${platforms[*]}"; } | digest)
  if [ ! -d "$wheels" ]; then
    rm -rf "$wheels.new"
    "$(host_python pip)" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
      --python-version "$python" --implementation cp "${platforms[@]}" --require-hashes --requirement "$1" \
      --dest "$wheels.new" >&2 || return 1
    mv "$wheels.new" "$wheels"
  fi
  echo "$wheels"
}

# Prints the checksums of all sources of dgym's wheel.
sources() {
  find pyproject.toml README.md LICENSE dgym operator -type f ! -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z \
    | xargs -0 sha256sum
}

# Builds dgym's wheel, reproducibly, into the directory $1.
make_wheel() {
  "$(host_python hatchling)" -m hatchling build --target wheel --directory "$1" >/dev/null 2>"$cache/wheel.log" \
    || { cat "$cache/wheel.log" >&2; return 1; }
}
