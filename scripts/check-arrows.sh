#!/bin/sh
# Which crate may use which (docs/architecture.md): fails when a Cargo.toml has an arrow that the table does not.
# Needs nothing but awk. Crates that do not exist yet are no error.
set -eu
cd "$(dirname "$0")/.."

allowed() {
    case $1 in
        abi) echo "" ;;
        image | sys | cuda-hooks) echo "abi" ;;
        pager) echo "image sys" ;;
        process) echo "abi image sys" ;;
        tiers) echo "image" ;;
        preload) echo "abi cuda-hooks image" ;;
        cuda-hooks/stand-in/ptx) echo "" ;; # for tests alone: nothing that is shipped may use it
        cli) echo "abi image sys pager tiers process cuda-hooks" ;;
        tests) echo "abi image sys pager tiers process cuda-hooks preload cli" ;;
        *) echo "unknown" ;;
    esac
}

bad=0
for manifest in */Cargo.toml cuda-hooks/stand-in/*/Cargo.toml; do
    [ -f "$manifest" ] || continue
    crate=${manifest%/Cargo.toml}
    [ "$crate" = fuzz ] && continue
    may=$(allowed "$crate")
    if [ "$may" = unknown ]; then
        echo "check-arrows: $crate is not in the table of scripts/check-arrows.sh and docs/architecture.md" >&2
        bad=1
        continue
    fi
    # names of all holdfast crates in any dependency section (tests of a crate may not break the arrows either)
    uses=$(awk '/^\[/ { in_deps = /dependencies/ }
        in_deps && /^holdfast-[a-z-]+/ { sub(/[ .=].*/, ""); sub(/^holdfast-/, ""); print }' "$manifest")
    for used in $uses; do
        case " $may " in
            *" $used "*) ;;
            *)
                echo "check-arrows: $crate uses $used; it may use: ${may:-nothing}" >&2
                bad=1
                ;;
        esac
    done
done
[ "$bad" = 0 ] && echo "check-arrows: all crates keep to the table"
exit "$bad"
