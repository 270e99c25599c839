#!/bin/sh
# What needs nvcc, which comes from PyPI into FOLDER (250 MB; kept for the next time). Neither the build nor the tests
# of CI need it.
#
#     scripts/nvcc.sh ptx FOLDER [SOURCE.cu...]   makes the committed .ptx files from the .cu sources beside them; by
#                                                 hand, whenever a source changes
#     scripts/nvcc.sh programs FOLDER             builds tests/programs/cuda as nvcc does, on mini-cudart, runs them on
#                                                 the stand-in driver, and compares with those of `make e2e`
#                                                 (`make nvcc`; part of `make test-full`)
set -eu
cd "$(dirname "$0")/.."
what=$1
folder=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
nvcc=$folder/nvidia/cu13/bin/nvcc
if [ ! -e "$nvcc" ]; then
    if ! python3 -m pip install -q --no-deps --target "$folder" nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 \
        nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85; then
        echo "SKIPPED: nvcc cannot be had here"
        exit 0
    fi
    chmod +x "$folder"/nvidia/cu13/bin/* "$folder"/nvidia/cu13/nvvm/bin/*
fi

ptx() {
    [ $# -gt 0 ] || set -- $(git ls-files '*.cu' ':!examples')
    for source; do
        # the first line of a source has its options: -lineinfo and -G bring debug lines and sections, which are skipped
        options=$(sed -n '1s,^// nvcc ,,p' "$source")
        # shellcheck disable=SC2086 # a list of options
        (cd "$(dirname "$source")" && "$nvcc" ${options:-} -ptx "${source##*/}" -o "$folder/out.ptx")
        # without folders of this machine: they are in names of files, and as bytes in debug sections
        sed -e 's,^\(.*\.file.*"\)/[^"]*/,\1,' -e '/^\.b8 /d' "$folder/out.ptx" > "${source%.cu}.ptx"
        # the second line may have a version and a target that are older than those of this nvcc, which the text is for
        older=$(sed -n '2s,^// ptx ,,p' "$source")
        [ -z "$older" ] || sed -i -e "s,^\.version .*,.version ${older% *}," -e "s,^\.target .*,.target ${older#* }," \
            "${source%.cu}.ptx"
    done
}

programs() {
    runtime=cuda-hooks/stand-in/mini-cudart
    mkdir -p "$folder/programs" "$folder/stand-in"
    cp target/release/libholdfast_stand_in.so "$folder/stand-in/libcuda.so.1"
    cc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -c $runtime/mini_cudart.c -o "$folder/programs/mini_cudart.o"
    for source in $(grep -l '^#include "cuda_program.h"' tests/programs/cuda/*.cu); do
        name=$(basename "$source" .cu)
        # the stand-in executes PTX alone, and reads it where it is not compressed
        "$nvcc" -O2 -arch=compute_75 -no-compress -cudart none -Xcompiler -pthread,-ffp-contract=off "$source" \
            "$folder/programs/mini_cudart.o" -o "$folder/programs/$name" -ldl -lm
        cc -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -ffp-contract=off -I $runtime \
            -DPTX_FILE="\"${source%.cu}.ptx\"" -x c "$source" $runtime/mini_cudart.c \
            -o "$folder/programs/$name-host" -ldl -lm
        for program in "$name" "$name-host"; do
            LD_LIBRARY_PATH=$folder/stand-in "$folder/programs/$program" 5 > "$folder/programs/$program.out" || {
                cat "$folder/programs/$program.out"
                exit 1
            }
        done
        cmp "$folder/programs/$name.out" "$folder/programs/$name-host.out"
        echo "$name: $(tail -n 1 "$folder/programs/$name.out")"
    done
    "$nvcc" -O2 -arch=compute_75 -no-compress -cudart none examples/cuda/heat.cu "$folder/programs/mini_cudart.o" \
        -o "$folder/programs/heat" -ldl
    echo "heat: $(LD_LIBRARY_PATH=$folder/stand-in "$folder/programs/heat" 200 40 | tail -n 1)"
}

"$what" "$@"
