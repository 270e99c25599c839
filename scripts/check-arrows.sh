#!/bin/sh
# Which crate may use which (docs/architecture.md): fails when a Cargo.toml has an arrow that the table does not.
# Needs nothing but awk. Crates that do not exist yet are no error.
set -eu
cd "$(dirname "$0")/.."

allowed() {
    case $1 in
        abi | filters) echo "" ;;
        image | sys) echo "abi" ;;
        cuda-hooks) echo "abi cuda-kernels" ;;
        pager) echo "image" ;;
        process) echo "abi filters image sys" ;;
        tiers) echo "image" ;;
        tiers/lab) echo "tiers" ;; # for tests alone: nothing that is shipped may use it
        preload) echo "abi cuda-hooks filters image" ;;
        cuda-hooks/kernels) echo "" ;;
        cuda-hooks/stand-in/ptx) echo "" ;; # likewise
        cuda-hooks/stand-in/driver) echo "ptx" ;; # likewise
        cuda-hooks/stand-in/nvcomp) echo "" ;; # likewise
        compat/objects | compat/streams) echo "sys" ;;
        compat/native | compat/veloc) echo "objects" ;;
        compat/nvstream) echo "image objects streams sys" ;;
        cli) echo "abi image sys pager tiers process objects streams cuda-hooks cuda-kernels" ;;
        tests) echo "abi image sys pager tiers process cuda-hooks preload cli" ;;
        *) echo "unknown" ;;
    esac
}

# In [dev-dependencies] besides: what is for tests alone.
allowed_in_tests() {
    case $1 in
        cuda-hooks) echo "stand-in" ;;
        tiers) echo "lab" ;;
        cuda-hooks/kernels) echo "ptx" ;;
        cuda-hooks/stand-in/driver) echo "cuda-kernels stand-in-nvcomp sys tiers" ;;
    esac
}

# names of all holdfast crates in the sections of dependencies: for tests (1), all others (0)
names_in() {
    awk -v tests="$1" '/^\[/ { in_deps = /dependencies/ && /dev-dependencies/ == tests }
        in_deps && /^holdfast-[a-z-]+/ { sub(/[ .=].*/, ""); sub(/^holdfast-/, ""); print }' "$2"
}

bad=0
for manifest in */Cargo.toml compat/*/Cargo.toml tiers/*/Cargo.toml cuda-hooks/*/Cargo.toml \
    cuda-hooks/stand-in/*/Cargo.toml; do
    [ -f "$manifest" ] || continue
    crate=${manifest%/Cargo.toml}
    [ "$crate" = fuzz ] && continue
    may=$(allowed "$crate")
    if [ "$may" = unknown ]; then
        echo "check-arrows: $crate is not in the table of scripts/check-arrows.sh and docs/architecture.md" >&2
        bad=1
        continue
    fi
    # tests of a crate may not break the arrows either, but for what is there for them
    for tests in 0 1; do
        [ "$tests" = 0 ] || may="$may $(allowed_in_tests "$crate")"
        for used in $(names_in "$tests" "$manifest"); do
            case " $may " in
                *" $used "*) ;;
                *)
                    echo "check-arrows: $crate uses $used; it may use: ${may:-nothing}" >&2
                    bad=1
                    ;;
            esac
        done
    done
done
[ "$bad" = 0 ] && echo "check-arrows: all crates keep to the table"
exit "$bad"
