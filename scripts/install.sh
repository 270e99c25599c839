#!/bin/sh
# Puts Holdfast into a folder (/usr/local, or one that is packed): usage: scripts/install.sh FROM TO
#   FROM  folder with holdfast and its libraries, as `make build` leaves them
#   TO    bin/ lib/holdfast/ include/ and share/ are below it; all of it may be moved later: holdfast looks for its
#         library beside itself and in ../lib/holdfast (cli/src/front/environment.rs), also through symbolic links; the
#         libraries that programs link with look for it in ../bin (compat/objects/src/client/start.rs)
# Called by the Makefile (install, tarball, deb, rpm) and by tests/tests/e2e/package.rs.
set -eu
umask 022
from=$1 to=$2
cd "$(dirname "$0")/.."
libraries="libholdfast-client.so libveloc-client.so libnvstream.so"
for file in holdfast libholdfast.so $libraries; do
    [ -f "$from/$file" ] || { echo "install: $from/$file is missing: make build" >&2; exit 1; }
done
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

# put FILE MODE PLACE: by way of a name beside it, so that programs that run from an older one are not disturbed
put() {
    mkdir -p "$to/${3%/*}"
    install -m "$2" "$1" "$to/$3.new"
    mv -f "$to/$3.new" "$to/$3"
}

# What is left are the symbols that others link with; lines for backtraces are ten times the rest.
for file in holdfast libholdfast.so $libraries; do
    strip -o "$new/$file" "$from/$file" 2>/dev/null || cp "$from/$file" "$new/$file"
done
put "$new/holdfast" 755 bin/holdfast
put "$new/libholdfast.so" 755 lib/holdfast/libholdfast.so
put preload/include/holdfast.h 644 include/holdfast.h
for file in $libraries; do
    put "$new/$file" 755 "lib/$file"
done
put compat/veloc/include/veloc.h 644 include/veloc.h
put compat/veloc/include/veloc.hpp 644 include/veloc.hpp
put compat/veloc/include/veloc/defs.h 644 include/veloc/defs.h
put compat/nvstream/include/nvs.h 644 include/nvs.h
put compat/native/fortran/holdfast_objects.f90 644 include/holdfast_objects.f90
put packaging/veloc-backend 755 bin/veloc-backend

holdfast() { "$new/holdfast" "$@"; }
version=$(holdfast --version)
for name in holdfast holdfast-client nvstream veloc-client; do
    sed "s/@VERSION@/${version##* }/" "packaging/$name.pc.in" >"$new/$name.pc"
    put "$new/$name.pc" 644 "lib/pkgconfig/$name.pc"
done

mkdir "$new/man"
holdfast __man "$new/man"
for page in "$new"/man/*; do
    put "$page" 644 "share/man/man1/${page##*/}"
done

holdfast completions bash >"$new/bash"
holdfast completions zsh >"$new/zsh"
# What zsh loads at the first completion is to answer that, too.
echo '[ "${funcstack[1]}" = _holdfast ] && _clap_dynamic_completer_holdfast "$@"' >>"$new/zsh"
holdfast completions fish >"$new/fish"
put "$new/bash" 644 share/bash-completion/completions/holdfast
put "$new/zsh" 644 share/zsh/site-functions/_holdfast
put "$new/fish" 644 share/fish/vendor_completions.d/holdfast.fish

put packaging/holdfast-restart.service 644 lib/systemd/user/holdfast-restart.service

for text in LICENSE README.md CHANGELOG.md; do
    put "$text" 644 "share/doc/holdfast/$text"
done
