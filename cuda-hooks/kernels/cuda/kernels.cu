// nvcc -O3 -arch=compute_75
// ptx 7.0 sm_50
// Holdfast's kernels: which chunks of device memory have changed, into a buffer with them, and back.
//
// Launched by cuda-hooks while the program's device is drained, as `src/launch.rs` describes; `src/digest.rs`,
// `src/chunk.rs` and `src/list.rs` compute the same on a processor, bit by bit. `scripts/nvcc.sh ptx` makes
// kernels.ptx of it, which is committed and linked into libholdfast.so: building Holdfast needs no CUDA.
// compute_75 is the lowest that nvcc 13.0 has; what it makes of this source PTX 7.0 has, and every device from sm_50 on
// (ptxas of 12.8 takes it for sm_50 to sm_120). The text says so: a driver refuses a text that is newer than itself.
//
// All parameters have eight bytes. Only the memory of the ranges and the buffers of the parameters is accessed, and a
// chunk that no range has is left out.
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

#define CHUNK 65536u
#define VECTORS (CHUNK / 16)
// Threads of a block that hashes or copies: part of what the digest is.
#define LANES 256u
// Threads of the one block that makes the lists, and chunks that it looks at at a time.
#define SCANNERS 1024u
#define TILE (4 * SCANNERS)
// What lanes begin with differs by it: 2^64 divided by the golden ratio.
#define STEP 0x9e3779b97f4a7c15ull

enum { CLEAN, DIRTY, ZERO };

struct Range {
    u64 address, bytes, slot, before;
};

// Where a chunk is: `bytes` is less than CHUNK at the end of a range, 0 where there is none.
struct Piece {
    u64 address, slot;
    u32 bytes;
};

__device__ __forceinline__ void find(const Range *ranges, u64 count, u64 chunk, Piece *piece) {
    u64 low = 0, high = count;
    while (high - low > 1) {
        u64 middle = (low + high) / 2;
        if (ranges[middle].before <= chunk) low = middle;
        else high = middle;
    }
    u64 nth = chunk - ranges[low].before, offset = nth * CHUNK, all = ranges[low].bytes;
    piece->address = ranges[low].address + offset;
    piece->slot = ranges[low].slot + nth;
    piece->bytes = offset >= all ? 0 : all - offset < CHUNK ? (u32)(all - offset) : CHUNK;
}

// The vector that a range ends in, with zeros behind its end.
__device__ __forceinline__ ulonglong2 tail(const void *at, u32 bytes) {
    const u8 *from = (const u8 *)at;
    ulonglong2 v = make_ulonglong2(0, 0);
    for (u32 i = 0; i < bytes; i++) {
        u64 byte = (u64)from[i] << (8 * (i & 7));
        if (i < 8) v.x |= byte;
        else v.y |= byte;
    }
    return v;
}

__device__ __forceinline__ u64 fold(u64 a, u64 key) {
    u64 b = a + key;
    return a * b ^ __umul64hi(a, b);
}

// A permutation of 128 bits for any keys: a Feistel network of two rounds.
__device__ __forceinline__ void mix(u64 &a, u64 &b, u64 k0, u64 k1) {
    b += fold(a, k0);
    a += fold(b, k1);
}

// The digest of each chunk goes to its slot of `fresh`, and to `states` how it compares with that of `previous`.
extern "C" __global__ void __launch_bounds__(LANES)
holdfast_hash(const Range *ranges, u64 count, u64 chunks, u64 k0, u64 k1, u64 k2, u64 k3, const ulonglong2 *previous,
              ulonglong2 *fresh, u8 *states) {
    __shared__ Piece piece;
    __shared__ u64 sums[LANES / 32][2];
    const u32 lane = threadIdx.x;
    for (u64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        if (lane == 0) find(ranges, count, chunk, &piece);
        __syncthreads();
        const ulonglong2 *data = (const ulonglong2 *)piece.address;
        const u32 bytes = piece.bytes;
        u64 a = k2 + lane * STEP, b = k3, any = 0;
        if (bytes == CHUNK) {
#pragma unroll 1
            for (u32 row = lane; row < VECTORS; row += 4 * LANES) {
                ulonglong2 v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = data[row + i * LANES];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a ^= v[i].x;
                    b ^= v[i].y;
                    any |= v[i].x | v[i].y;
                    mix(a, b, k0, k1);
                }
            }
        } else {
            const u32 last = (bytes + 15) / 16;
#pragma unroll 1
            for (u32 i = lane; i < last; i += LANES) {
                ulonglong2 v = i < bytes / 16 ? data[i] : tail(data + i, bytes & 15);
                a ^= v.x;
                b ^= v.y;
                any |= v.x | v.y;
                mix(a, b, k0, k1);
            }
        }
        mix(a, b, k0, k1);
        for (int o = 16; o; o >>= 1) {
            a += __shfl_down_sync(0xffffffffu, a, o);
            b += __shfl_down_sync(0xffffffffu, b, o);
        }
        if ((lane & 31) == 0) {
            sums[lane >> 5][0] = a;
            sums[lane >> 5][1] = b;
        }
        const int filled = __syncthreads_or(any != 0);
        if (lane == 0) {
            for (u32 w = 1; w < LANES / 32; w++) {
                a += sums[w][0];
                b += sums[w][1];
            }
            a ^= bytes;
            mix(a, b, k0, k1);
            mix(a, b, k0, k1);
            if ((a | b) == 0) a = 1; // zero means that there is no digest
            const ulonglong2 old = previous[piece.slot];
            fresh[piece.slot] = make_ulonglong2(a, b);
            states[chunk] = old.x == a && old.y == b ? CLEAN : filled ? DIRTY : ZERO;
        }
    }
}

// The chunks that are dirty and those that are dirty and all zero, each list in ascending order. One block: a byte of
// state stands for 64 KiB that were hashed.
extern "C" __global__ void __launch_bounds__(SCANNERS)
holdfast_list(const u32 *states, u64 chunks, u32 *dirty, u32 *zero, u64 *counts) {
    __shared__ u32 sums[SCANNERS / 32];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64 dirties = 0, zeros = 0;
    for (u64 tile = 0; tile < chunks; tile += TILE) {
        const u64 first = tile + 4 * threadIdx.x;
        u32 word = 0;
        if (first < chunks) {
            word = states[first / 4];
            if (chunks - first < 4) word &= (1u << (8 * (u32)(chunks - first))) - 1;
        }
        u32 own = 0; // dirty ones in the lower half, zero ones in the upper
        for (int i = 0; i < 4; i++) {
            u32 state = word >> (8 * i) & 255;
            own += (state == DIRTY ? 1 : 0) + (state == ZERO ? 1 << 16 : 0);
        }
        u32 sum = own;
        for (u32 o = 1; o < 32; o <<= 1) {
            u32 below = __shfl_up_sync(0xffffffffu, sum, o);
            if (lane >= o) sum += below;
        }
        if (lane == 31) sums[warp] = sum;
        __syncthreads();
        u32 before = 0, all = 0;
        for (u32 w = 0; w < SCANNERS / 32; w++) {
            if (w == warp) before = all;
            all += sums[w];
        }
        __syncthreads();
        before += sum - own;
        u64 d = dirties + (before & 0xffff), z = zeros + (before >> 16);
        for (int i = 0; i < 4; i++) {
            u32 state = word >> (8 * i) & 255;
            if (state == DIRTY) dirty[d++] = (u32)first + i;
            if (state == ZERO) zero[z++] = (u32)first + i;
        }
        dirties += all & 0xffff;
        zeros += all >> 16;
    }
    if (threadIdx.x == 0) {
        counts[0] = dirties;
        counts[1] = zeros;
    }
}

// The chunks of a list, one behind the other, each CHUNK bytes: zeros follow a short one.
extern "C" __global__ void __launch_bounds__(LANES)
holdfast_gather(const Range *ranges, u64 count, const u32 *list, u64 number, u8 *to) {
    __shared__ Piece piece;
    for (u64 k = blockIdx.x; k < number; k += gridDim.x) {
        if (threadIdx.x == 0) find(ranges, count, list[k], &piece);
        __syncthreads();
        const ulonglong2 *from = (const ulonglong2 *)piece.address;
        ulonglong2 *there = (ulonglong2 *)(to + k * CHUNK);
        const u32 bytes = piece.bytes, whole = bytes / 16;
        if (bytes == CHUNK) {
#pragma unroll 4
            for (u32 i = threadIdx.x; i < VECTORS; i += LANES) there[i] = from[i];
        } else {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < VECTORS; i += LANES) {
                there[i] = i < whole ? from[i] : tail(from + i, i == whole ? bytes & 15 : 0);
            }
        }
        __syncthreads();
    }
}

// The other way: what is behind the end of a short chunk stays as it is.
extern "C" __global__ void __launch_bounds__(LANES)
holdfast_scatter(const Range *ranges, u64 count, const u32 *list, u64 number, const u8 *from) {
    __shared__ Piece piece;
    for (u64 k = blockIdx.x; k < number; k += gridDim.x) {
        if (threadIdx.x == 0) find(ranges, count, list[k], &piece);
        __syncthreads();
        const ulonglong2 *here = (const ulonglong2 *)(from + k * CHUNK);
        ulonglong2 *to = (ulonglong2 *)piece.address;
        const u32 bytes = piece.bytes, whole = bytes / 16;
        if (bytes == CHUNK) {
#pragma unroll 4
            for (u32 i = threadIdx.x; i < VECTORS; i += LANES) to[i] = here[i];
        } else {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < whole; i += LANES) to[i] = here[i];
            const u8 *last = (const u8 *)(here + whole);
            if (threadIdx.x < (bytes & 15)) ((u8 *)(to + whole))[threadIdx.x] = last[threadIdx.x];
        }
        __syncthreads();
    }
}

// Fills the chunks of a list with zeros.
extern "C" __global__ void __launch_bounds__(LANES)
holdfast_clear(const Range *ranges, u64 count, const u32 *list, u64 number) {
    __shared__ Piece piece;
    for (u64 k = blockIdx.x; k < number; k += gridDim.x) {
        if (threadIdx.x == 0) find(ranges, count, list[k], &piece);
        __syncthreads();
        ulonglong2 *to = (ulonglong2 *)piece.address;
        const u32 bytes = piece.bytes, whole = bytes / 16;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < whole; i += LANES) to[i] = make_ulonglong2(0, 0);
        if (threadIdx.x < (bytes & 15)) ((u8 *)(to + whole))[threadIdx.x] = 0;
        __syncthreads();
    }
}
