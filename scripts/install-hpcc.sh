#!/bin/sh
# Builds the HPC Challenge benchmark of Debian's source package with Open MPI and with MPICH: DIR/hpcc-openmpi,
# DIR/hpcc-mpich. Called by install-deps.sh (trees). Two of its calls are older than MPI-3 and get their present names.
#   scripts/install-hpcc.sh DIR
set -eu
dir=$1
source=http://deb.debian.org/debian/pool/main/h/hpcc/hpcc_1.5.0.orig.tar.gz
sum=0a6fef7ab9f3347e549fed65ebb98234feea9ee18aea0c8f59baefbe3cf7ffb8

[ -x "$dir/hpcc-openmpi" ] && [ -x "$dir/hpcc-mpich" ] && exit 0
echo "install-hpcc: building the HPC Challenge benchmark in $dir"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
/usr/bin/python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$source" hpcc.tar.gz
echo "$sum  hpcc.tar.gz" | sha256sum --check --quiet
tar xf hpcc.tar.gz
cd hpcc-1.5.0
grep -rlE 'MPI_(Address|Type_struct)' --include='*.[ch]' . |
    xargs sed -i 's/\bMPI_Address\b/MPI_Get_address/g; s/\bMPI_Type_struct\b/MPI_Type_create_struct/g'
# One processor type for all: what its Makefile includes, with the BLAS that numpy brings.
cat > hpl/Make.here <<'END'
SHELL = /bin/sh
CD = cd
MKDIR = mkdir -p
RM = rm -f
TOUCH = touch
TOPdir = ../../..
INCdir = $(TOPdir)/include
LIBdir = $(TOPdir)/lib/here
HPLlib = $(LIBdir)/libhpl.a
HPL_DEFS = -DAdd_ -DF77_INTEGER=int -DStringSunStyle -I$(INCdir) -I$(INCdir)/here
HPL_LIBS = $(HPLlib) /usr/lib/x86_64-linux-gnu/libblas.so.3 -lm
CC = $(MPICC)
CCNOOPT = $(HPL_DEFS)
CCFLAGS = $(HPL_DEFS) -O2 -w -fcommon
LINKER = $(CC)
LINKFLAGS = $(CCFLAGS)
ARCHIVER = ar
ARFLAGS = r
RANLIB = :
END
mkdir -p "$dir"
for kind in openmpi mpich; do
    make -s arch=here clean >/dev/null 2>&1 || true
    make -s arch=here MPICC=mpicc.$kind >log 2>&1 || { tail -20 log >&2; exit 1; }
    mv hpcc "$dir/hpcc-$kind"
done
