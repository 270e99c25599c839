#!/usr/bin/env python3
"""Lists the functions of the CUDA driver's headers, as facts: cuda-hooks/header/symbols.txt is its output.

    make cuda-table                                         # the headers of all versions, from PyPI
    cuda-hooks/header/list.py DIR... > cuda-hooks/header/symbols.txt

Each DIR has cuda.h, cudaGL.h, cudaEGL.h, cudaVDPAU.h, and cudaTypedefs.h with its three sisters: the folder
nvidia/cu13/include of the PyPI wheel nvidia-cuda-runtime, or nvidia/cuda_runtime/include of its predecessors. What any
version has is listed. The headers are NVIDIA's and not part of this project; what is written here are names, the
versions of cuGetProcAddress(), and how arguments are passed.

Fails by: a message and status 1 where a header has something that this script does not know, or where two versions pass
the arguments of one symbol in different ways.
"""

import re
import sys
from pathlib import Path

HEADERS = ["cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"]
TYPEDEFS = ["cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h"]
# Structs that are passed by value. 64 bytes go onto the stack (System V ABI, AMD64, 3.2.3: class MEMORY); eight bytes
# of integers into one register.
BIG = {"CUipcMemHandle", "CUipcEventHandle", "CUipcMemHandle_v1", "CUipcEventHandle_v1"}
SMALL_STRUCTS = {"CUmemLocation"}
# Everything else that is passed by value fits one general register: handles are pointers, the rest are integers.
# Types that are neither have to be looked at.
INTEGERS = {
    "int", "unsigned int", "unsigned", "size_t", "unsigned char", "unsigned short", "unsigned long long", "char",
    "long long", "GLuint", "GLenum", "VdpDevice", "VdpVideoSurface", "VdpOutputSurface", "cuuint32_t", "cuuint64_t",
}
NOT_INTEGERS = {"float": "f"}


def fail(text):
    sys.exit(f"list.py: {text}")


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text).replace("\\\n", " ")


def parts(arguments):
    """Splits an argument list at its outer commas."""
    depth, part, found = 0, "", []
    for sign in arguments:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            found.append(part)
            part = ""
        else:
            part += sign
    if part.strip() not in ("", "void"):
        found.append(part)
    return [" ".join(part.split()) for part in found]


def kind(argument):
    """w: a general register or eight bytes of stack; f: a float; s: 64 bytes of stack."""
    if "*" in argument or "[" in argument:
        return "w"
    argument = re.sub(r"\b(const|struct|enum)\b", "", argument).strip()
    words = argument.split()
    base = argument if argument in INTEGERS else " ".join(words[:-1]) if len(words) > 1 else words[0]
    if base in NOT_INTEGERS:
        return NOT_INTEGERS[base]
    if base in BIG:
        return "s"
    if base in INTEGERS or base in SMALL_STRUCTS or re.fullmatch(r"(CU|cu|Vdp|EGL|GL)\w+", base):
        return "w"
    fail(f"an argument of unknown type: {argument!r}")


def passed(arguments):
    return "".join(kind(part) for part in parts(arguments)) or "-"


def declared(text):
    pattern = r"CUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w*)\s*\((.*?)\)\s*;"
    # cuWGL: Windows has them.
    found = [entry for entry in re.findall(pattern, text, flags=re.S) if not entry[0].startswith("cuWGL")]
    return [(name, passed(arguments)) for name, arguments in found]


def defines(text):
    """Name in a program -> (symbol, "ptsz", "ptds" or "")."""
    found = {}
    for name, value in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(cu[A-Z]\w*)[ \t]+(.+?)[ \t]*$", text, flags=re.M):
        wrapped = re.fullmatch(r"__CUDA_API_(PTSZ|PTDS)\((\w+)\)", value)
        symbol = wrapped.group(2) if wrapped else value
        if not re.fullmatch(r"cu[A-Z]\w*", symbol):
            fail(f"#define {name} {value}")
        found.setdefault(name, (symbol, wrapped.group(1).lower() if wrapped else ""))
    return found


def symbols_of(text):
    """Symbol -> (name in a program, how its arguments are passed, its variant for the other default stream)."""
    # First what programs see, then what the driver itself is compiled with: older versions by their own names.
    head, _, old = text.partition("#undef")
    old, _, tail = old.partition("#elif defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)")
    head += tail.partition("#endif")[2]
    renamed = defines(head)
    found = {}
    for name, arguments in declared(head):
        symbol, variant = renamed.get(name, (name, ""))
        found[symbol] = (plain(symbol), arguments)
        if variant:
            found[f"{symbol}_{variant}"] = (plain(symbol), arguments)
    for symbol, arguments in declared(old):
        found.setdefault(symbol, (plain(symbol), arguments))
    return found


def plain(symbol):
    """The name by which cuGetProcAddress() knows a symbol."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol)


def generation(symbol):
    found = re.search(r"_v(\d+)", symbol)
    return int(found.group(1)) if found else 1


def versions_of(text):
    """(name, "", "ptsz" or "ptds") -> versions in ascending order, each with its arguments."""
    found = {}
    pattern = r"\(CUDAAPI\s*\*\s*PFN_(cu[A-Z]\w*?)_v(\d+)(?:_(ptsz|ptds))?\)\s*\((.*?)\)\s*;"
    for name, version, variant, arguments in re.findall(pattern, text, flags=re.S):
        if name.startswith("cuWGL"):
            continue
        found.setdefault((name, variant), {})[int(version)] = passed(arguments)
    return {key: sorted(value.items()) for key, value in found.items()}


def version_of(folder):
    return int(re.search(r"#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text()).group(1))


def rows_of(folder):
    """Symbol -> header, name, first version or "-", variant, arguments: of one version of CUDA."""
    versions = {}
    for header in TYPEDEFS:
        versions.update(versions_of(without_comments((folder / header).read_text())))
    rows = {}
    for header in HEADERS:
        table = symbols_of(without_comments((folder / header).read_text()))
        by_name = {}
        for symbol, (name, arguments) in table.items():
            variant = (re.search(r"_(ptsz|ptds)$", symbol) or [None, ""])[1]
            by_name.setdefault((name, variant), []).append((symbol, arguments))
        asked = {}
        for key, symbols in by_name.items():
            symbols.sort(key=lambda entry: generation(entry[0]))
            known = versions.get(key, [])
            # The newest belong together; the header of types leaves some of the oldest out, or names them.
            for (symbol, arguments), (since, typed) in zip(reversed(symbols), reversed(known)):
                if arguments != typed:
                    fail(f"{symbol} is declared with {arguments}, and has a type with {typed}")
                asked[symbol] = since
            if len(symbols) < len(known):
                fail(f"{key}: symbols {[symbol for symbol, _ in symbols]}, versions {known}")
        for symbol in sorted(table):
            name, arguments = table[symbol]
            variant = (re.search(r"_(ptsz|ptds)$", symbol) or [None, "-"])[1]
            name = "=" if name == symbol else name
            rows[symbol] = (header, name, str(asked.get(symbol, "-")), variant, arguments)
    return rows


def main():
    folders = sorted(map(Path, sys.argv[1:]), key=version_of)
    if not folders:
        fail("give me the folders of the headers")
    rows = {}
    for folder in folders:
        for symbol, row in rows_of(folder).items():
            old = rows.get(symbol, row)
            if (old[:2], old[3:]) != (row[:2], row[3:]):
                fail(f"{symbol} was {old}, and is {row} in {version_of(folder)}")
            # The header of types leaves some out at first.
            rows[symbol] = row if row[2] != "-" else old
    first, last = version_of(folders[0]), version_of(folders[-1])
    print(f"# Functions of the driver's headers, CUDA_VERSION {first} to {last}; made by list.py, not by hand.")
    print("# symbol, header, name for cuGetProcAddress() (=: the symbol), first version, flag, arguments")
    for symbol, row in sorted(rows.items(), key=lambda entry: (HEADERS.index(entry[1][0]), entry[0])):
        print(symbol, *row)


if __name__ == "__main__":
    main()
