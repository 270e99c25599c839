/* The registers that every instruction uses, live while nothing touches memory: `general KIND [ROUNDS]`
 * KIND: numbers (14 registers and the flags), redzone (128 bytes below the stack pointer), gs (the base of GS, one per
 * thread), x87 (the eight registers of the old coprocessor and its control word) */
#include "rounds.h"
#include <asm/prctl.h>
#include <pthread.h>
#include <sys/syscall.h>

#define SPINS 30000000 /* some tens of milliseconds */
#define FLAGS 0xcd5u    /* carry, parity, adjust, zero, sign, direction, overflow */

struct registers {
    uint64_t in[14], out[14], flags_in, flags_out, spins;
};

/* Loads all but RSP and RCX, counts down without changing a flag, stores them. */
void spin_numbers(struct registers *r);
__asm__(".text\n.globl spin_numbers\nspin_numbers:\n"
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n push %rdi\n"
        "mov 240(%rdi), %rcx\n pushq 224(%rdi)\n popfq\n"
        "mov 0(%rdi), %rax\n mov 8(%rdi), %rbx\n mov 16(%rdi), %rdx\n mov 24(%rdi), %rsi\n mov 32(%rdi), %rbp\n"
        "mov 40(%rdi), %r8\n mov 48(%rdi), %r9\n mov 56(%rdi), %r10\n mov 64(%rdi), %r11\n mov 72(%rdi), %r12\n"
        "mov 80(%rdi), %r13\n mov 88(%rdi), %r14\n mov 96(%rdi), %r15\n mov 104(%rdi), %rdi\n"
        "1: lea -1(%rcx), %rcx\n jrcxz 2f\n jmp 1b\n"
        "2: pushfq\n push %rdi\n mov 16(%rsp), %rdi\n"
        "mov %rax, 112(%rdi)\n mov %rbx, 120(%rdi)\n mov %rdx, 128(%rdi)\n mov %rsi, 136(%rdi)\n mov %rbp, 144(%rdi)\n"
        "mov %r8, 152(%rdi)\n mov %r9, 160(%rdi)\n mov %r10, 168(%rdi)\n mov %r11, 176(%rdi)\n mov %r12, 184(%rdi)\n"
        "mov %r13, 192(%rdi)\n mov %r14, 200(%rdi)\n mov %r15, 208(%rdi)\n"
        "pop %rax\n mov %rax, 216(%rdi)\n pop %rax\n mov %rax, 232(%rdi)\n cld\n"
        "pop %rdi\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");

static void numbers_round(long round)
{
    struct registers r = {.flags_in = mix((uint64_t)round) & FLAGS, .spins = SPINS};
    for (int i = 0; i < 14; i++) r.in[i] = mix((uint64_t)(round * 14 + i));
    spin_numbers(&r);
    CHECK(memcmp(r.in, r.out, sizeof r.in) == 0);
    CHECK((r.flags_out & FLAGS) == r.flags_in);
}

/* What a leaf function keeps below the stack pointer. Returns how many of its words were changed. */
uint64_t spin_redzone(uint64_t first, uint64_t spins);
__asm__(".text\n.globl spin_redzone\nspin_redzone:\n"
        "xor %eax, %eax\n mov $-16, %rcx\n"
        "1: mov %rdi, (%rsp,%rcx,8)\n add $3, %rdi\n inc %rcx\n jnz 1b\n"
        "2: dec %rsi\n jnz 2b\n"
        "mov $-16, %rcx\n sub $48, %rdi\n"
        "3: cmp %rdi, (%rsp,%rcx,8)\n je 4f\n inc %rax\n"
        "4: add $3, %rdi\n inc %rcx\n jnz 3b\n ret\n");

static void redzone_round(long round) { CHECK(spin_redzone(mix((uint64_t)round), SPINS) == 0); }

#define THREADS 4
static uint64_t blocks[THREADS + 1][2];
static volatile long turn;

static uint64_t at_gs(void)
{
    uint64_t value;
    __asm__ volatile("mov %%gs:8, %0" : "=r"(value));
    return value;
}

static void set_gs(int self)
{
    blocks[self][1] = mix((uint64_t)self);
    CHECK(syscall(SYS_arch_prctl, ARCH_SET_GS, blocks[self]) == 0);
}

static void *gs_thread(void *argument)
{
    int self = (int)(intptr_t)argument;
    set_gs(self);
    for (;;) {
        CHECK(at_gs() == mix((uint64_t)self));
        sleep_ms(7);
    }
    return NULL;
}

static void gs_prepare(void)
{
    pthread_t thread;
    set_gs(0);
    for (int i = 1; i <= THREADS; i++) CHECK_ZERO(pthread_create(&thread, NULL, gs_thread, (void *)(intptr_t)i));
}

static void gs_round(long round)
{
    uint64_t base = 0;
    CHECK(at_gs() == mix(round % 2 ? 100 : 0));
    CHECK(syscall(SYS_arch_prctl, ARCH_GET_GS, &base) == 0 && base == (uintptr_t)blocks[0]);
    blocks[0][1] = mix(round % 2 ? 0 : 100);
}

static void x87_round(long round)
{
    double in[8], out[8];
    unsigned short mode = (unsigned short)(0x7f | (round % 4) << 10 | (round % 2 ? 3 : 2) << 8), after;
    for (int i = 0; i < 8; i++) in[i] = (double)(round * 8 + i) + 0.5;
    uint64_t spins = SPINS;
    __asm__ volatile("fninit\n fldcw %4\n fldl (%1)\n fldl 8(%1)\n fldl 16(%1)\n fldl 24(%1)\n fldl 32(%1)\n"
                     " fldl 40(%1)\nfldl 48(%1)\n fldl 56(%1)\n 1: dec %0\n jnz 1b\n fnstcw %3\n"
                     "fstpl 56(%2)\n fstpl 48(%2)\n fstpl 40(%2)\n fstpl 32(%2)\n fstpl 24(%2)\n fstpl 16(%2)\n"
                     "fstpl 8(%2)\n fstpl (%2)\n fninit\n"
                     : "+r"(spins)
                     : "r"(in), "r"(out), "m"(after), "m"(mode)
                     : "memory", "cc");
    CHECK(memcmp(in, out, sizeof in) == 0 && after == mode);
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"numbers", NULL, numbers_round}, {"redzone", NULL, redzone_round}, {"gs", gs_prepare, gs_round},
        {"x87", NULL, x87_round}};
    return RUN_KIND(kinds);
}
