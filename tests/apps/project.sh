#!/bin/sh
# Writes a small C project into the folder `project`: 24 files that are compiled on their own and a program that calls
# all of them. `make -j2` builds and runs it.
# -pipe: the compiler leaves no temporary file between its parts, which a later life of the job could have deleted. An
# object gets its name when it is complete: whoever dies before that leaves nothing that a restarted `make` takes for
# one.
set -e
mkdir -p project
cd project
files=""
calls=""
for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24; do
    files="$files part$n.o"
    calls="$calls    sum = sum * 31 + part$n(sum);
"
    {
        echo '#include <stdint.h>'
        echo '#include <stdio.h>'
        echo '#include <math.h>'
        f=0
        while [ $f -lt 25 ]; do
            echo "static uint64_t f$f(uint64_t x) { uint64_t a[16];" \
                "for (int i = 0; i < 16; i++) a[i] = x * $((f + 3)) + i;"
            echo "  for (int i = 0; i < 500; i++) a[i % 16] ^= (a[(i * 7 + $f) % 16] << $((f % 13 + 1))) + $n;" \
                "return a[x % 16]; }"
            f=$((f + 1))
        done
        echo "uint64_t part$n(uint64_t x) {"
        f=0
        while [ $f -lt 25 ]; do
            echo "  x ^= f$f(x);"
            f=$((f + 1))
        done
        echo '  return x; }'
    } > "part$n.c"
    echo "uint64_t part$n(uint64_t);"
done > parts.h
{
    echo '#include <stdint.h>'
    echo '#include <stdio.h>'
    echo '#include "parts.h"'
    echo 'int main(void) { uint64_t sum = 1;'
    echo "$calls"
    echo '    printf("%016lx", sum); return 0; }'
} > main.c
cat > Makefile <<EOF
CFLAGS = -O2 -pipe
result.txt: program
	./program > \$@
	sha256sum program \$@
program: main.o$files
	\$(CC) -Wl,--build-id=none -o \$@ \$^
main.o: parts.h
# an earlier life may have moved it
%.o: %.c
	\$(CC) \$(CFLAGS) -c -o \$@.new \$< && { mv \$@.new \$@ 2> /dev/null || test -s \$@; }
EOF
