# Part of hack/images: the base image of the others.

# Prints the base image of a Dockerfile, by digest.
base_of() { sed -n 's/^ARG BASE=//p' "images/$1/Dockerfile"; }

base=${BASE:-$(base_of sandbox-python)}
suite=trixie
debian=localhost/dgym/base:$suite

# Sets base to an image that the engine has, after a pull if necessary.
find_base() {
  has "$base" && return
  if ! { [ -z "${BASE:-}" ] && has "$debian"; }; then
    say "pulling $base …"
    timeout 600 "$engine" pull --quiet "$base" >/dev/null && return
    [ -z "${BASE:-}" ] || return 1
    import_debian || return 1
  fi
  base=$debian
}

import_debian() {
  local tree
  if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null 2>&1; then
    say "$base cannot be pulled, and making a base here needs root and debootstrap"
    return 1
  fi
  if [ ! -f "$cache/$suite.tar" ]; then
    say "$base cannot be pulled; making a small Debian instead, which takes a minute or two …"
    tree=$(mktemp -d "$cache/debootstrap-XXXXXX")
    # dpkg need not sync files, because an incomplete tree is not used.
    mkdir -p "$tree/etc/dpkg/dpkg.cfg.d"
    echo force-unsafe-io >"$tree/etc/dpkg/dpkg.cfg.d/unsafe-io"
    if ! timeout 420 debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$tree" "$(mirror)" \
      >"$cache/debootstrap.log" 2>&1; then
      say "debootstrap failed; its last lines:"
      tail -n 5 "$cache/debootstrap.log" >&2
      rm -rf --one-file-system "$tree"
      return 1
    fi
    chmod 755 "$tree"
    tar -C "$tree" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' \
      --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' \
      --exclude=./etc/dpkg/dpkg.cfg.d/unsafe-io -cf "$cache/$suite.tar.new" . || return 1
    rm -rf --one-file-system "$tree"
    mv "$cache/$suite.tar.new" "$cache/$suite.tar"
  fi
  "$engine" import "$cache/$suite.tar" "$debian" >"$cache/import.log" 2>&1 || { cat "$cache/import.log" >&2; return 1; }
}

# Prints the package mirror of this machine if it is a Debian, else nothing, so that debootstrap uses its default.
mirror() {
  grep -qs '^ID=debian' /etc/os-release || return 0
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -v security | head -n 1 || true
}

# Prints the base for the agent's image, which needs git: AGENT_BASE, or the one of its Dockerfile if base is that of
# sandbox-python's Dockerfile. To any other base, git is added once, because the build of the image has no network.
base_with_git() {
  local with_git named=${AGENT_BASE:-}
  [ -n "$named" ] || [ "$base" != "$(base_of sandbox-python)" ] || named=$(base_of agent)
  if [ -n "$named" ]; then
    has "$named" || timeout 600 "$engine" pull --quiet "$named" >&2 || return 1
    echo "$named"
    return
  fi
  with_git=localhost/dgym/base-git:$(image_id "$base" | digest)
  if ! has "$with_git"; then
    if "$engine" run --rm --network none --entrypoint git "$base" --version >/dev/null 2>&1; then
      "$engine" tag "$base" "$with_git"
    else
      say "adding git to $base …"
      add_git "$with_git" || return 1
    fi
  fi
  echo "$with_git"
}

add_git() {
  timeout 600 "$engine" build --quiet --network host --build-arg BASE="$base" --tag "$1" - \
    >"$cache/git.log" 2>&1 <<'DOCKERFILE' || { say "git cannot be added:"; tail -n 5 "$cache/git.log" >&2; return 1; }
ARG BASE
FROM ${BASE}
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-unsafe-io git ca-certificates \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
DOCKERFILE
}
