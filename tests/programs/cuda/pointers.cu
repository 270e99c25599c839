// nvcc -O2 -arch=compute_75
/* Stores through pointers that lie in device memory: a table of rows, which kernels permute, and a list. */
#include "cuda_program.h"

struct node {
    struct node *next;
    unsigned value, seen;
};

#ifdef __CUDACC__
KERNEL void fill(unsigned **rows, int count, int length, unsigned add)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < count * length; i += gridDim.x * blockDim.x) {
        unsigned *at = &rows[i / length][i % length];
        *at = *at * 3 + add + i;
    }
}

KERNEL void swap_rows(unsigned **rows, int one, int other)
{
    unsigned *row = rows[one];
    rows[one] = rows[other];
    rows[other] = row;
}

KERNEL void chase(struct node *head, unsigned add)
{
    for (struct node *n = head; n != NULL; n = n->next) {
        n->value += add;
        n->seen++;
    }
}
#else
STUB(fill, (unsigned **rows, int count, int length, unsigned add), rows, count, length, add)
STUB(swap_rows, (unsigned **rows, int one, int other), rows, one, other)
STUB(chase, (struct node *head, unsigned add), head, add)
MODULE(ADD_KERNEL(fill) ADD_KERNEL(swap_rows) ADD_KERNEL(chase))
#endif

enum { ROWS = 24, LENGTH = 150, NODES = 100 };
static unsigned **rows, *table[ROWS], host[ROWS][LENGTH];
static int order[ROWS];
static struct node *nodes, host_nodes[NODES];

/* Both rows of a step's exchange. */
static int one_of(long step)
{
    return (int)(mix(step) % ROWS);
}

static int other_of(long step)
{
    return (int)(mix(step + 1000000) % ROWS);
}

static void begin(long step)
{
    LAUNCH(fill, 4, 128, 0, (rows, ROWS, LENGTH, (unsigned)step));
    LAUNCH(swap_rows, 1, 1, 0, (rows, one_of(step), other_of(step)));
    LAUNCH(fill, 5, 96, 0, (rows, ROWS, LENGTH, 77u));
    LAUNCH(chase, 1, 1, 0, (nodes, (unsigned)mix(step)));
}

static void fill_host(unsigned add)
{
    for (int i = 0; i < ROWS * LENGTH; i++) {
        unsigned *at = &host[order[i / LENGTH]][i % LENGTH];
        *at = *at * 3 + add + i;
    }
}

static uint64_t end(long step)
{
    uint64_t sum = 0;
    int one = one_of(step), other = other_of(step), row = order[one];
    fill_host((unsigned)step);
    order[one] = order[other];
    order[other] = row;
    fill_host(77);
    for (int i = 0; i < NODES; i++) {
        host_nodes[i].value += (unsigned)mix(step);
        host_nodes[i].seen++;
    }
    for (int i = 0; i < ROWS; i++) sum = mix(sum ^ compared("row", table[i], host[i], sizeof(host[i])));
    /* where memory lies is no part of what is printed */
    compared("list", nodes, host_nodes, sizeof(host_nodes));
    for (int i = 0; i < NODES; i++) sum = mix(sum ^ host_nodes[i].value);
    return sum;
}

int main(int argc, char **argv)
{
    for (int i = 0; i < ROWS; i++) {
        order[i] = i;
        table[i] = (unsigned *)on_device(NULL, sizeof(host[i]));
    }
    rows = (unsigned **)on_device(table, sizeof(table));
    CUDA(cudaMalloc((void **)&nodes, sizeof(host_nodes)));
    /* the list goes through all nodes in another order than they lie */
    for (int i = 0; i < NODES; i++) {
        int at = i * 37 % NODES, after = (i + 1) * 37 % NODES;
        host_nodes[at].next = i + 1 < NODES ? nodes + after : NULL;
        host_nodes[at].value = i;
    }
    CUDA(cudaMemcpy(nodes, host_nodes, sizeof(host_nodes), cudaMemcpyHostToDevice));
    return run_steps("pointers", argc, argv, begin, end);
}
