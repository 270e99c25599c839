/* A code with the memory pattern of an atmospheric model (CM1 and its kin): six fields on a grid, three time levels
 * each, a three-stage Runge-Kutta step with short acoustic steps inside. Each field is a block of its own, and blocks
 * are written in another order than they lie in memory, some of them once and some of them many times per step. Run by
 * benches/figure4.py.
 *
 * `lattice MIB STEPS`: MIB is the size of all fields together. Prints `step N` after each step, then `loop SECONDS` for
 * all steps and `sum X`, which is the same in every run. */
#include "common.h"

enum field { U, V, W, PRESSURE, HEAT, MOISTURE, FIELDS };

struct grid {
    size_t x, y, z, row, plane, cells;
    double *past[FIELDS], *now[FIELDS], *rate[FIELDS], *base;
};

static double *block(size_t cells, uint64_t seed, double scale)
{
    double *values = malloc(cells * sizeof *values);
    CHECK(values != NULL);
    for (size_t i = 0; i < cells; i++)
        values[i] = scale * ((double)(mix(seed << 40 ^ i) >> 11) / 9007199254740992.0 - 0.5);
    return values;
}

static struct grid make_grid(size_t bytes)
{
    const size_t blocks = 3 * FIELDS + 1;
    struct grid grid = {.x = 128, .y = 128};
    grid.row = grid.x;
    grid.plane = grid.x * grid.y;
    grid.z = bytes / sizeof(double) / blocks / grid.plane;
    CHECK(grid.z >= 4);
    grid.cells = grid.plane * grid.z;
    grid.base = block(grid.cells, 99, 0.01);
    for (unsigned f = 0; f < FIELDS; f++) {
        grid.past[f] = block(grid.cells, f, 0.01);
        grid.rate[f] = block(grid.cells, f + FIELDS, 0);
        grid.now[f] = block(grid.cells, f, 0.01);
    }
    return grid;
}

/* One row of cells at a time: the inner loop of everything below. */
#define FOR_ROWS(grid, at)                                                                             \
    for (size_t k_ = 1; k_ + 1 < (grid)->z; k_++)                                                      \
        for (size_t j_ = 1, at = k_ * (grid)->plane + (grid)->row; j_ + 1 < (grid)->y; j_++, at += (grid)->row)

/* Diffusion, and transport along x and z. */
static void tendency(const struct grid *grid, enum field field)
{
    const double *restrict q = grid->now[field], *restrict u = grid->now[U], *restrict w = grid->now[W];
    const double *restrict base = grid->base;
    double *restrict rate = grid->rate[field];
    const size_t row = grid->row, plane = grid->plane;
    FOR_ROWS(grid, at)
        for (size_t i = at + 1; i + 1 < at + row; i++) {
            double spread = q[i - 1] + q[i + 1] + q[i - row] + q[i + row] + q[i - plane] + q[i + plane] - 6 * q[i];
            rate[i] = 0.05 * spread - 0.5 * u[i] * (q[i + 1] - q[i - 1]) - 0.5 * w[i] * (q[i + plane] - q[i - plane]) +
                      0.001 * (base[i] - q[i]);
        }
}

static void advance(const struct grid *grid, enum field field, double dt)
{
    const double *restrict past = grid->past[field], *restrict rate = grid->rate[field];
    double *restrict now = grid->now[field];
    for (size_t i = 0; i < grid->cells; i++) now[i] = past[i] + dt * rate[i];
}

/* Wind by the gradient of pressure, then pressure by the divergence of wind. */
static void acoustic(const struct grid *grid, double dt)
{
    const size_t row = grid->row, plane = grid->plane;
    double *restrict u = grid->now[U], *restrict v = grid->now[V], *restrict w = grid->now[W];
    double *restrict p = grid->now[PRESSURE];
    const double *restrict heat = grid->now[HEAT];
    FOR_ROWS(grid, at)
        for (size_t i = at + 1; i + 1 < at + row; i++) {
            u[i] -= dt * (p[i + 1] - p[i]);
            v[i] -= dt * (p[i + row] - p[i]);
            w[i] -= dt * (p[i + plane] - p[i] - 0.1 * heat[i]);
        }
    FOR_ROWS(grid, at)
        for (size_t i = at + 1; i + 1 < at + row; i++)
            p[i] -= dt * (u[i] - u[i - 1] + v[i] - v[i - row] + w[i] - w[i - plane]);
}

static void time_step(const struct grid *grid, double dt)
{
    for (int stage = 3; stage >= 1; stage--) {
        double part = dt / stage;
        for (unsigned f = 0; f < FIELDS; f++) tendency(grid, f);
        for (unsigned f = 0; f <= PRESSURE; f++) advance(grid, f, part);
        for (int n = 0; n < 4 - stage; n++) acoustic(grid, part / (4 - stage));
        for (unsigned f = HEAT; f < FIELDS; f++) advance(grid, f, part);
    }
    for (unsigned f = 0; f < FIELDS; f++) memcpy(grid->past[f], grid->now[f], grid->cells * sizeof(double));
}

int main(int argc, char **argv)
{
    struct grid grid = make_grid((size_t)number_argument(argc, argv, 1, 512) << 20);
    long steps = number_argument(argc, argv, 2, 10);
    puts("ready");
    fflush(stdout);
    int64_t begun = now_ns();
    for (long step = 1; step <= steps; step++) {
        time_step(&grid, 0.1);
        printf("step %ld\n", step);
        fflush(stdout);
    }
    int64_t took = now_ns() - begun;
    double sum = 0;
    for (unsigned f = 0; f < FIELDS; f++)
        for (size_t i = 0; i < grid.cells; i++) sum += grid.now[f][i] * grid.now[f][i];
    printf("loop %.6f\nsum %a\n", (double)took / 1e9, sum);
    return 0;
}
