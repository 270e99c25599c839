/* Vector, mask and floating-point registers that stay live for a long time in each of eight threads.
 *
 * A thread loads its own pattern into all registers by one piece of assembly, counts down for some milliseconds without
 * touching memory, stores the registers again and compares. Rounding modes differ by thread. `registers [ROUNDS]`
 */
#include "common.h"
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>

#define THREADS 8

struct bank {
    uint8_t vectors[32][64];
    uint64_t masks[8];
    long double x87[2];
} __attribute__((aligned(64)));

static enum { SSE, AVX, AVX512 } level;
static uint64_t loops;
static long rounds;
static pthread_barrier_t barrier;

#define TO_15 "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#define TO_31 TO_15 ",16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
#define LOW_CLOBBERS                                                                                               \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
        "xmm13", "xmm14", "xmm15"

__attribute__((noinline)) static void spin_sse(const struct bank *in, struct bank *out, uint64_t n)
{
    __asm__ volatile("fld1\n fldpi\n"
                     ".irp i," TO_15 "\n movdqu \\i*64(%[in]), %%xmm\\i\n .endr\n"
                     "1: dec %[n]\n jnz 1b\n"
                     ".irp i," TO_15 "\n movdqu %%xmm\\i, \\i*64(%[out])\n .endr\n"
                     "fstpt 2112(%[out])\n fstpt 2128(%[out])\n"
                     : [n] "+r"(n)
                     : [in] "r"(in->vectors), [out] "r"(out->vectors)
                     : "memory", "cc", LOW_CLOBBERS);
}

__attribute__((noinline, target("avx"))) static void spin_avx(const struct bank *in, struct bank *out, uint64_t n)
{
    __asm__ volatile("fld1\n fldpi\n"
                     ".irp i," TO_15 "\n vmovdqu \\i*64(%[in]), %%ymm\\i\n .endr\n"
                     "1: dec %[n]\n jnz 1b\n"
                     ".irp i," TO_15 "\n vmovdqu %%ymm\\i, \\i*64(%[out])\n .endr\n"
                     "fstpt 2112(%[out])\n fstpt 2128(%[out])\n vzeroupper\n"
                     : [n] "+r"(n)
                     : [in] "r"(in->vectors), [out] "r"(out->vectors)
                     : "memory", "cc", LOW_CLOBBERS);
}

__attribute__((noinline, target("avx512f,avx512bw"))) static void spin_avx512(const struct bank *in, struct bank *out,
                                                                              uint64_t n)
{
    __asm__ volatile("fld1\n fldpi\n"
                     ".irp i," TO_31 "\n vmovdqu64 \\i*64(%[in]), %%zmm\\i\n .endr\n"
                     ".irp i,1,2,3,4,5,6,7\n kmovq 2048+\\i*8(%[in]), %%k\\i\n .endr\n"
                     "1: dec %[n]\n jnz 1b\n"
                     ".irp i," TO_31 "\n vmovdqu64 %%zmm\\i, \\i*64(%[out])\n .endr\n"
                     ".irp i,1,2,3,4,5,6,7\n kmovq %%k\\i, 2048+\\i*8(%[out])\n .endr\n"
                     "fstpt 2112(%[out])\n fstpt 2128(%[out])\n vzeroupper\n"
                     : [n] "+r"(n)
                     : [in] "r"(in->vectors), [out] "r"(out->vectors)
                     : "memory", "cc", LOW_CLOBBERS, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22",
                       "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2",
                       "k3", "k4", "k5", "k6", "k7");
}

static void spin(const struct bank *in, struct bank *out, uint64_t n)
{
    if (level == AVX512)
        spin_avx512(in, out, n);
    else if (level == AVX)
        spin_avx(in, out, n);
    else
        spin_sse(in, out, n);
}

static void check_banks(const struct bank *in, const struct bank *out)
{
    int vectors = level == AVX512 ? 32 : 16, width = level == AVX512 ? 64 : level == AVX ? 32 : 16;
    for (int i = 0; i < vectors; i++)
        if (memcmp(in->vectors[i], out->vectors[i], (size_t)width) != 0) {
            printf("vector register %d changed\n", i);
            CHECK(!"vector registers unchanged");
        }
    for (int i = 1; level == AVX512 && i < 8; i++) CHECK(in->masks[i] == out->masks[i]);
    CHECK(out->x87[0] > 3.14L && out->x87[0] < 3.15L && out->x87[1] == 1.0L);
}

static void *worker(void *argument)
{
    uint64_t id = (uint64_t)(uintptr_t)argument;
    struct bank in, out;
    unsigned rounding = (unsigned)(id & 3) << 13; /* MXCSR bits 13 and 14 */
    unsigned short control = (unsigned short)(0x037f | (id & 3) << 10);
    CHECK(offsetof(struct bank, x87) == 2112);
    _mm_setcsr((_mm_getcsr() & ~0x6000u) | rounding);
    __asm__ volatile("fldcw %0" : : "m"(control));
    for (long round = 0; round < rounds; round++) {
        pthread_barrier_wait(&barrier);
        if (id == 0) step("registers round %ld", round);
        for (int i = 0; i < 32; i++)
            for (int j = 0; j < 64; j += 8) {
                uint64_t word = mix(id << 40 | (uint64_t)round << 20 | (uint64_t)(i * 64 + j));
                memcpy(&in.vectors[i][j], &word, 8);
            }
        for (int i = 0; i < 8; i++) in.masks[i] = mix(id * 8 + (uint64_t)i + (uint64_t)round);
        memset(&out, 0, sizeof out);
        spin(&in, &out, loops);
        check_banks(&in, &out);
        CHECK((_mm_getcsr() & 0x6000) == rounding);
        unsigned short now;
        __asm__ volatile("fnstcw %0" : "=m"(now));
        CHECK(now == control);
    }
    return NULL;
}

/* Processor time: on a busy machine the clock would count others' time, too, and the rounds be too short. */
static int64_t used_ns(void)
{
    struct timespec used;
    CHECK_ZERO(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used));
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    rounds = number_argument(argc, argv, 1, 25);
    level = __builtin_cpu_supports("avx512bw") ? AVX512 : __builtin_cpu_supports("avx") ? AVX : SSE;
    step("vector registers of %d bytes", level == AVX512 ? 64 : level == AVX ? 32 : 16);
    struct bank in, out;
    memset(&in, 0, sizeof in);
    int64_t start = used_ns();
    spin(&in, &out, 20000000);
    loops = (uint64_t)(20000000 * (20e6 / (double)(used_ns() - start + 1))); /* some 20 ms of one core */
    CHECK_ZERO(pthread_barrier_init(&barrier, NULL, THREADS));
    for (uintptr_t i = 0; i < THREADS; i++) CHECK_ZERO(pthread_create(&threads[i], NULL, worker, (void *)i));
    for (int i = 0; i < THREADS; i++) CHECK_ZERO(pthread_join(threads[i], NULL));
    return pass();
}
