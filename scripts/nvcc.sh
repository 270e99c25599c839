#!/bin/sh
# What needs nvcc, which comes from PyPI into FOLDER (250 MB; kept for the next time). Neither the build nor the tests
# of CI need it.
#
#     scripts/nvcc.sh ptx FOLDER [SOURCE.cu...]   makes the committed .ptx files from the .cu sources beside them; by
#                                                 hand, whenever a source changes
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
    [ $# -gt 0 ] || set -- $(git ls-files '*.cu')
    for source; do
        # the first line of a source has its options: -lineinfo and -G bring debug lines and sections, which are skipped
        options=$(sed -n '1s,^// nvcc ,,p' "$source")
        # shellcheck disable=SC2086 # a list of options
        (cd "$(dirname "$source")" && "$nvcc" ${options:-} -ptx "${source##*/}" -o "$folder/out.ptx")
        # without folders of this machine: they are in names of files, and as bytes in debug sections
        sed -e 's,^\(.*\.file.*"\)/[^"]*/,\1,' -e '/^\.b8 /d' "$folder/out.ptx" > "${source%.cu}.ptx"
    done
}

"$what" "$@"
