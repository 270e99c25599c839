/* Heat that spreads over a plate: a program of the CUDA runtime that knows nothing of Holdfast.
 *
 *     nvcc -O2 -o heat heat.cu
 *     holdfast run --name heat -- ./heat 20000 &
 *     holdfast checkpoint heat            # as often as you like
 *     holdfast checkpoint --stop heat     # or kill -9 it
 *     holdfast restart heat
 *
 * `heat [STEPS [SIDE]]` prints the heat of a plate of SIDE x SIDE cells every 100 steps. Stopped and restarted as often
 * as you like, here or on another GPU of the same model, it prints what it prints undisturbed. */
#include <cstdio>
#include <cstdlib>

enum { EVERY = 100 };

__global__ void spread(const float *from, float *to, int side)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= side || y >= side) return;
    int here = y * side + x;
    if (x == 0 || y == 0 || x == side - 1 || y == side - 1) {
        to[here] = from[here];
        return;
    }
    float around = from[here - 1] + from[here + 1] + from[here - side] + from[here + side];
    to[here] = from[here] + 0.2f * (around - 4.0f * from[here]);
}

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? std::atol(argv[1]) : 20000;
    int side = argc > 2 ? std::atoi(argv[2]) : 1024;
    if (side < 1 || side > 16384) return 1;
    size_t cells = static_cast<size_t>(side) * side, bytes = sizeof(float) * cells;
    float *plates[2];
    float *host = static_cast<float *>(std::calloc(cells, sizeof(float)));
    if (host == nullptr) return 1;
    /* One edge is hot. */
    for (int x = 0; x < side; x++) host[x] = 100.0f;
    for (int n = 0; n < 2; n++) {
        check(cudaMalloc(reinterpret_cast<void **>(&plates[n]), bytes), "cudaMalloc");
        check(cudaMemcpy(plates[n], host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    dim3 block(32, 8), grid((side + 31) / 32, (side + 7) / 8);
    for (long step = 1; step <= steps; step++) {
        spread<<<grid, block>>>(plates[(step + 1) % 2], plates[step % 2], side);
        if (step % EVERY != 0) continue;
        check(cudaMemcpy(host, plates[step % 2], bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
        double sum = 0;
        for (size_t n = 0; n < cells; n++) sum += host[n];
        std::printf("%6ld %.6f\n", step, sum);
        std::fflush(stdout);
    }
    return 0;
}
