/* One read(2) by way of io_uring: the ring is made, used and taken away, as no image may hold one. Every other read
 * goes into a registered buffer, which the kernel pins and writes without any page fault. */
#ifndef HOLDFAST_TEST_RING_H
#define HOLDFAST_TEST_RING_H

#include "common.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

struct ring {
    int fd;
    char *queues;
    struct io_uring_sqe *entries;
    size_t queues_len, entries_len;
    struct io_uring_params parameters;
};

static int ring_open(struct ring *ring)
{
    memset(ring, 0, sizeof *ring);
    ring->fd = (int)raw_call(SYS_io_uring_setup, 4, (long)&ring->parameters);
    if (ring->fd < 0) return -1;
    const struct io_uring_params *p = &ring->parameters;
    CHECK(p->features & IORING_FEAT_SINGLE_MMAP);
    size_t submissions = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    size_t completions = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->queues_len = submissions > completions ? submissions : completions;
    ring->entries_len = p->sq_entries * sizeof *ring->entries;
    const int rw = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    ring->queues = mmap(NULL, ring->queues_len, rw, flags, ring->fd, IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, ring->entries_len, rw, flags, ring->fd, IORING_OFF_SQES);
    CHECK(ring->queues != MAP_FAILED && ring->entries != MAP_FAILED);
    return 0;
}

static void ring_close(struct ring *ring)
{
    CHECK(munmap(ring->queues, ring->queues_len) == 0 && munmap(ring->entries, ring->entries_len) == 0);
    CHECK(close(ring->fd) == 0);
}

/* Bytes read, or a negative error. */
static ssize_t ring_submit(struct ring *ring, const struct io_uring_sqe *entry)
{
    const struct io_uring_params *p = &ring->parameters;
    uint32_t *tail = (uint32_t *)(ring->queues + p->sq_off.tail);
    uint32_t *array = (uint32_t *)(ring->queues + p->sq_off.array);
    uint32_t mask = *(uint32_t *)(ring->queues + p->sq_off.ring_mask);
    ring->entries[*tail & mask] = *entry;
    array[*tail & mask] = *tail & mask;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    uint32_t *head = (uint32_t *)(ring->queues + p->cq_off.head), *end = (uint32_t *)(ring->queues + p->cq_off.tail);
    long submitted = syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    CHECK(submitted == 1 || errno == EINTR);
    while (__atomic_load_n(end, __ATOMIC_ACQUIRE) == *head)
        (void)syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    mask = *(uint32_t *)(ring->queues + p->cq_off.ring_mask);
    const struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->queues + p->cq_off.cqes) + (*head & mask);
    ssize_t result = done->res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

static ssize_t ring_read(int file, void *to, size_t len, off_t offset)
{
    struct ring ring;
    CHECK(ring_open(&ring) == 0);
    struct io_uring_sqe entry = {.opcode = IORING_OP_READ, .fd = file};
    struct iovec buffer = {to, len};
    entry.addr = (uintptr_t)to;
    entry.len = (uint32_t)len;
    entry.off = (uint64_t)offset;
    if ((offset / 4096) % 2 == 0) {
        /* Pinned memory counts as locked (RLIMIT_MEMLOCK), for a while after the end of its ring as well. */
        long registered = syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &buffer, 1);
        CHECK(registered == 0 || errno == ENOMEM);
        if (registered == 0) entry.opcode = IORING_OP_READ_FIXED;
    }
    ssize_t result = ring_submit(&ring, &entry);
    ring_close(&ring);
    return result;
}

/* Whether this user may have a ring here. */
static int ring_allowed(void)
{
    struct ring ring;
    if (ring_open(&ring) != 0) return 0;
    ring_close(&ring);
    return 1;
}

#endif
