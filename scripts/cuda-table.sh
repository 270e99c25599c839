#!/bin/sh
# The list of the CUDA driver's functions, cuda-hooks/header/symbols.txt, from the headers of all minor versions that
# Holdfast knows: they come from PyPI (NVIDIA's own wheels, 2 MB each), and stay in FOLDER. Run by `make cuda-table`.
# Then each new name wants a row in cuda-hooks/functions.txt: `cargo test -p holdfast-cuda-hooks` says which.
set -e
folder=${FOLDER:-target/cuda-headers}
for wheel in \
    nvidia-cuda-runtime-cu12==12.0.146 nvidia-cuda-runtime-cu12==12.1.105 nvidia-cuda-runtime-cu12==12.2.140 \
    nvidia-cuda-runtime-cu12==12.3.101 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-runtime-cu12==12.5.82 \
    nvidia-cuda-runtime-cu12==12.6.77 nvidia-cuda-runtime-cu12==12.8.90 nvidia-cuda-runtime-cu12==12.9.79 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-runtime==13.1.80 nvidia-cuda-runtime==13.2.86 \
    nvidia-cuda-runtime==13.3.29 nvidia-cuda-runtime==13.4.92 nvidia-cuda-runtime==13.5.37; do
    to=$folder/${wheel##*==}
    [ -d "$to" ] || python3 -m pip install -q --no-deps --target "$to" "$wheel"
done
# shellcheck disable=SC2046 # no folder of a wheel has a blank in its name
python3 cuda-hooks/header/list.py $(find "$folder" -name cuda.h -exec dirname {} \;) > "$folder/symbols.txt"
mv "$folder/symbols.txt" cuda-hooks/header/symbols.txt
