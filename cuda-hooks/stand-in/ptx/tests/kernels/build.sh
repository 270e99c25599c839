#!/bin/sh
# Makes the .ptx files from the .cu sources beside them, by nvcc from PyPI in a scratch folder (250 MB). Called by hand,
# whenever a source changes: the results are committed, so that the tests need no nvcc.
#
#     build.sh [FOLDER]     FOLDER keeps the compiler for the next time
set -eu
here=$(cd "$(dirname "$0")" && pwd)
scratch=${1:-$(mktemp -d)}
if [ ! -e "$scratch/nvidia/cu13/bin/nvcc" ]; then
    python3 -m pip install -q --no-deps --target "$scratch" nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 \
        nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    chmod +x "$scratch"/nvidia/cu13/bin/* "$scratch"/nvidia/cu13/nvvm/bin/*
fi
for source in "$here"/*.cu; do
    # the first line of a source has its options: -lineinfo and -G bring debug lines and sections, which are skipped
    options=$(sed -n 's,^// nvcc ,,p' "$source")
    # shellcheck disable=SC2086 # a list of options
    (cd "$here" && "$scratch/nvidia/cu13/bin/nvcc" ${options:-} -ptx "${source##*/}" -o "$scratch/out.ptx")
    # without folders of this machine: they are in names of files, and as bytes in debug sections
    sed -e 's,^\(.*\.file.*"\)/[^"]*/,\1,' -e '/^\.b8 /d' "$scratch/out.ptx" > "${source%.cu}.ptx"
done
