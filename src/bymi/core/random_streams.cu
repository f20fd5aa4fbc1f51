// Keys and normal numbers of random_streams.py: one launch each, for blocks of 256 threads.

typedef unsigned long long Word;

constexpr Word GOLDEN = 0x9E3779B97F4A7C15ull, FIRST = 0xBF58476D1CE4E5B9ull, SECOND = 0x94D049BB133111EBull;
constexpr double TWO_PI = 6.283185307179586;

__device__ Word mixed(Word bits) {
    bits = (bits ^ bits >> 30) * FIRST;
    bits = (bits ^ bits >> 27) * SECOND;
    return bits ^ bits >> 31;
}

__device__ double uniform(Word key, Word counter) {
    return ((double)(mixed(key + counter * GOLDEN) >> 11) + 0.5) * (1.0 / 9007199254740992.0);
}

// output [size] keys of `nodes` [size]; with `stepped` those of one step.
extern "C" __global__ void keys_of_nodes(const Word* nodes, Word* output, Word start, Word step, int stepped, int size) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= size) return;
    const Word key = mixed(start + (nodes[i] + 1) * GOLDEN);
    output[i] = stepped ? mixed((key ^ FIRST) + (step + 1) * SECOND) : key;
}

// output [size, count] by Box and Muller's method: a thread makes two numbers of a row, `half` = ceil(count / 2) apart.
extern "C" __global__ void normals(const Word* keys, double* output, int size, int count, int half) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= (long long)size * half) return;
    const long long row = i / half, column = i % half;
    const double radius = sqrt(-2.0 * log(uniform(keys[row], column + 1)));
    const double angle = TWO_PI * uniform(keys[row], half + column + 1);
    double* pair = output + row * count + column;
    pair[0] = radius * cos(angle);
    if (half + column < count) pair[half] = radius * sin(angle);
}
