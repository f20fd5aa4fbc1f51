// The filter kernel on a CPU, whole and up to the projections of its first step.

#include "cuda_on_cpu.h"
#include "../src/bymi/aggregation/spectral_filter.cu"

extern "C" int filter(
    const double* gram, const unsigned char* valid, const double* goals, double* output, int sets, int n, int shared) {
    return emulated::run(sets, shared, [=] { spectral_filter(gram, valid, goals, output, n); });
}

extern "C" void projections(const double* gram, const double* shares, double* output, int sets, int n) {
    emulated::run(sets, sizeof(memory), [=] {
        Block block = block_in(memory);
        Vector share, root, along;
        int first = 3;
        for (int p = 0; p < PARTS; ++p) {
            const int i = block.lane + 32 * p;
            share[p] = i < n ? shares[blockIdx.x * n + i] : 0.0;
            root[p] = std::sqrt(share[p]);
        }
        project(block, gram + blockIdx.x * n * n, n, share, root, first, along);
        for (int p = 0; p < PARTS; ++p) {
            const int i = block.lane + 32 * p;
            if (block.warp == 0 && i < n) output[blockIdx.x * n + i] = along[p];
        }
    });
}
