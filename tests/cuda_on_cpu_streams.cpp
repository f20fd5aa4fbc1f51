// The kernels of random streams on a CPU.

#include "cuda_on_cpu.h"
#include "../src/bymi/core/random_streams.cu"

extern "C" void keys(const Word* nodes, Word* output, Word start, Word step, int stepped, int size) {
    emulated::run((size + 255) / 256, 0, [=] { keys_of_nodes(nodes, output, start, step, stepped, size); });
}

extern "C" void draw(const Word* keys, double* output, int size, int count) {
    const int half = (count + 1) / 2;
    emulated::run((size * half + 255) / 256, 0, [=] { normals(keys, output, size, count, half); });
}
