// The loop of a spectral filter (spectral_filtering.py, caf.py), a block of 256 threads for each set of at most 16 TILE points.
//
// A step needs the top eigenvector of A = D^1/2 K D^1/2: K has the products of the points about their mean, D their shares of
// the weight. Its largest diagonal entry c is at most the eigenvalue that is wanted. With X = 2 A / c - I, the Chebyshev
// polynomial P = T_16(X) comes from four squarings, T_2k = 2 T_k^2 - I: it moves eigenvalues below c to [-1, 1] and those above
// apart. Lanczos' method then takes about ten products with P in place of a hundred with A, and products are its time: their
// terms are few, but each waits for the one before. T = Q^T P Q is tridiagonal, with largest eigenvalue theta and its
// eigenvector s, and Q s is the vector that is wanted.
//
// Vectors over points lie in the lanes of a warp, PARTS entries each. All warps hold the same ones and do the same with them, so
// that a product needs one barrier and a sum over points none. Macros: TILE (2, 4, 6 or 8), CAF and MEDIAN (0 or 1).

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int PLACES = 16 * TILE, PARTS = PLACES / 32;
constexpr int PITCH = PLACES + 4;          // of a matrix in shared memory: no two threads of a fragment share a bank
constexpr int STEPS = 32;                  // vectors in Q; then further squarings are needed
#ifndef SQUARINGS
#define SQUARINGS 4
#endif
constexpr int ROUNDS = 4;                  // of squarings and Lanczos
constexpr double RESIDUAL = 3e-13;         // |P v - theta v| / theta at which Lanczos ends
constexpr double EMPTY = 1e-9;             // as in spectral_filtering.py
constexpr double LARGEST = 1.7976931348623157e308;

typedef double Vector[PARTS];
typedef double Tile[TILE][TILE];

struct Block {
    int thread, warp, lane, column, row;
    int sum;              // row whose sum `multiply` leaves in this thread, or -1
    double* matrix;       // [PLACES, PITCH] X and its polynomials
    double* basis;        // [STEPS, PLACES] Q, a row per vector, in the same place
    double* products;     // [2, PLACES] products with A, by turns
    double* copies;       // [WARPS, PLACES] a vector for each warp
    double* diagonal;     // [STEPS] of T
    double* beside;       // [STEPS] entries of T beside the diagonal
    double* inverse;      // [STEPS] their inverses
    double* entries;      // [STEPS] s
    double2* scaled;      // [STEPS] T moved and scaled: diagonal, square of the entry before it
    int turn;
};

__device__ double total(double value) {
    for (int mask = 16; mask; mask /= 2) value += __shfl_xor_sync(~0u, value, mask);
    return value;
}

__device__ double largest(double value) {
    for (int mask = 16; mask; mask /= 2) value = fmax(value, __shfl_xor_sync(~0u, value, mask));
    return value;
}

__device__ double dot(const Vector& left, const Vector& right) {
    double sum = 0.0;
    for (int p = 0; p < PARTS; ++p) sum = fma(left[p], right[p], sum);
    return total(sum);
}

// Adds ROWS values over the threads that differ in the bit `mask` of their column; each of two keeps half of the sums.
template <int ROWS>
__device__ void halve(double* sums, int column, int mask) {
    constexpr int HALF = (ROWS + 1) / 2;
    const bool upper = column & mask;
    for (int i = 0; i < HALF; ++i) {
        const double low = sums[i], high = i + HALF < ROWS ? sums[i + HALF] : 0.0;
        sums[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, mask);
    }
}

// Row whose sum four calls of `halve` leave in a thread, or -1.
__device__ int row_of_sum(int column, int row) {
    int first = 0, left = TILE;
    for (int mask = 8, half = (TILE + 1) / 2; mask; mask /= 2, half = (half + 1) / 2) {
        if (column & mask) first += half, left -= half;
        else left = min(left, half);
    }
    return left > 0 ? row + 16 * first : -1;
}

__device__ Block block_in(double* memory) {
    Block block;
    block.thread = threadIdx.x;
    block.warp = block.thread / 32, block.lane = block.thread % 32;
    block.row = block.thread / 16, block.column = block.thread % 16;
    block.sum = row_of_sum(block.column, block.row);
    block.matrix = block.basis = memory;
    block.products = memory + PLACES * max(PITCH, STEPS);
    block.copies = block.products + 2 * PLACES;
    block.diagonal = block.copies + WARPS * PLACES;
    block.beside = block.diagonal + STEPS;
    block.inverse = block.beside + STEPS;
    block.entries = block.inverse + STEPS;
    block.scaled = (double2*)(block.entries + STEPS);
    block.turn = 0;
    return block;
}

__device__ void put(Block& block, const Vector& vector) {
    double* own = block.copies + block.warp * PLACES;
    for (int p = 0; p < PARTS; ++p) own[block.lane + 32 * p] = vector[p];
    __syncwarp();
}

// Product of the matrix in tiles with a vector that was `put`. A thread has the rows row + 16 r and the columns column + 16 c.
__device__ const double* multiply(Block& block, const Tile& tile) {
    constexpr int A = (TILE + 1) / 2, B = (A + 1) / 2, C = (B + 1) / 2;
    const double* vector = block.copies + block.warp * PLACES;
    double sums[TILE] = {};
    for (int c = 0; c < TILE; ++c) {
        const double factor = vector[block.column + 16 * c];
        for (int r = 0; r < TILE; ++r) sums[r] = fma(tile[r][c], factor, sums[r]);
    }
    halve<TILE>(sums, block.column, 8);
    halve<A>(sums, block.column, 4);
    halve<B>(sums, block.column, 2);
    halve<C>(sums, block.column, 1);
    double* product = block.products + (block.turn ^= 1) * PLACES;
    if (block.sum >= 0) product[block.sum] = sums[0];
    __syncthreads();  // enough: who is still reading the other half of `products` has not passed it
    return product;
}

__device__ void load(const Block& block, Tile& tile, const double* gram, int n) {
    for (int r = 0; r < TILE; ++r)
        for (int c = 0; c < TILE; ++c) {
            const int i = block.row + 16 * r, j = block.column + 16 * c;
            tile[r][c] = i < n && j < n ? gram[i * n + j] : 0.0;
        }
}

// X in block.matrix, from the products of the points about any origin. Returns c.
__device__ double form(Block& block, const double* gram, int n, const Vector& share, const Vector& root) {
    Tile tile;
    load(block, tile, gram, n);
    put(block, share);
    const double* towards = multiply(block, tile);  // products with the mean
    double mean = 0.0, most = 0.0;
    for (int p = 0; p < PARTS; ++p) mean = fma(share[p], towards[block.lane + 32 * p], mean);
    mean = total(mean);
    for (int p = 0; p < PARTS; ++p) {
        const int i = block.lane + 32 * p;
        if (i < n) most = fmax(most, share[p] * (gram[i * n + i] - 2 * towards[i] + mean));
    }
    most = largest(most);
    put(block, root);
    const double* roots = block.copies + block.warp * PLACES;
    const double scale = 2 / most;
    for (int r = 0; r < TILE; ++r) {
        const int i = block.row + 16 * r;
        for (int c = 0; c < TILE; ++c) {
            const int j = block.column + 16 * c;
            const double product = tile[r][c] - (towards[i] + towards[j]) + mean;  // symmetric to the last bit, as all that follows
            block.matrix[i * PITCH + j] = fma(scale * product, roots[i] * roots[j], i == j ? -1.0 : 0.0);
        }
    }
    __syncthreads();
    return most;
}

// sums += left right^T for fragments of 8 x 4: a thread has row lane / 4 and column lane % 4 of these, and two columns of the sums.
#ifdef __CUDACC__
__device__ void multiply_small(double* sums, double left, double right) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(sums[0]), "+d"(sums[1])
        : "d"(left), "d"(right));
}
#endif

// The same for fragments of 16 x 8 and 8 x 8, four times and twice as large: of `left` its upper and lower rows, then those four
// columns further on. In one instruction where there is one: squares then take 0.6 of the time.
__device__ void multiply_fragments(double (&sums)[4], const double (&left)[4], const double (&right)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(sums[0]), "+d"(sums[1]), "+d"(sums[2]), "+d"(sums[3])
        : "d"(left[0]), "d"(left[1]), "d"(left[2]), "d"(left[3]), "d"(right[0]), "d"(right[1]));
#else
    for (int half = 0; half < 2; ++half)
        for (int x = 0; x < 2; ++x) multiply_small(sums + 2 * x, left[x + 2 * half], right[half]);
#endif
}

// X <- 2 X^2 - I in block.matrix, for the first `extent` rows: further points have no weight, and nothing in common with others.
// A warp computes pairs of 16 rows and 16 columns on or above the diagonal.
__device__ void square(Block& block, int extent) {
    constexpr int PAIRS = TILE * (TILE + 1) / 2, TURNS = (PAIRS + WARPS - 1) / WARPS;
    const int groups = (extent + 15) / 16;
    double sums[TURNS][2][4] = {};
    int rows[TURNS], columns[TURNS];
    for (int turn = 0; turn < TURNS; ++turn) {
        int row = 0, left = block.warp + WARPS * turn;
        for (; row < groups && left >= groups - row; ++row) left -= groups - row;
        rows[turn] = row < groups ? 16 * row : PLACES;  // PLACES: none
        columns[turn] = 16 * (row + left);
    }
    const double* fragment = block.matrix + block.lane / 4 * PITCH + block.lane % 4;
#pragma unroll 2
    for (int k = 0; k < extent; k += 8)
        for (int turn = 0; turn < TURNS; ++turn)
            if (rows[turn] < PLACES) {
                const double* upper = fragment + rows[turn] * PITCH + k;
                const double* lower = upper + 8 * PITCH;
                const double left[4] = {upper[0], lower[0], upper[4], lower[4]};
                for (int y = 0; y < 2; ++y) {
                    const double* across = fragment + (columns[turn] + 8 * y) * PITCH + k;
                    const double right[2] = {across[0], across[4]};
                    multiply_fragments(sums[turn][y], left, right);
                }
            }
    __syncthreads();
    for (int turn = 0; turn < TURNS; ++turn)
        if (rows[turn] < PLACES)
            for (int x = 0; x < 2; ++x)
                for (int y = 0; y < 2; ++y)
                    for (int side = 0; side < 2; ++side) {
                        const int i = rows[turn] + 8 * x + block.lane / 4, j = columns[turn] + 8 * y + block.lane % 4 * 2 + side;
                        const double entry = 2 * sums[turn][y][2 * x + side] - (i == j ? 1.0 : 0.0);
                        block.matrix[i * PITCH + j] = block.matrix[j * PITCH + i] = entry;
                    }
    __syncthreads();
}

// T so far: its size, and bounds of what it has.
struct Tridiagonal {
    int size;
    double low, high;                // Gershgorin's bounds of its eigenvalues
    double most_diagonal, most_beside, last;
    double theta, residual;          // as of the last look; residual < 0: none yet
};

// theta and the residual of Q s; s in block.entries, with last entry 1. Returns 1 / |s|.
__device__ double look(Block& block, Tridiagonal& t) {
    // Theta is between the points of a grid where all minors of x I - T are positive and where not; 256 points at a time.
    const double middle = 0.5 * (t.high + t.low), half = t.high > t.low ? 0.5 * (t.high - t.low) : 1.0, by = 1.0 / half;
    const double end = 1.0 + 1e-12;
    double low = (t.most_diagonal - middle) * by - 1e-13, high = end;
    bool guessed = t.residual >= 0.0;
    if (guessed) {
        low = (t.theta - middle) * by - 1e-13;
        high = fmin(end, low + 2.0 * t.residual * by + 2e-13);
    }
    __syncthreads();
    for (int i = block.thread; i < t.size; i += THREADS) {
        const double side = i ? block.beside[i - 1] * by : 0.0;
        block.scaled[i] = make_double2((block.diagonal[i] - middle) * by, side * side);
    }
    __syncthreads();
    for (int pass = 0; pass < 9 && high - low > 1e-15; ++pass) {
        const double width = (high - low) / THREADS, x = fma(width, block.thread + 1.0, low);
        double older = 1.0, minor = x - block.scaled[0].x;
        bool above = minor > 0;
        for (int i = 1; i < t.size; ++i) {
            const double2 entry = block.scaled[i];
            const double next = fma(x - entry.x, minor, -entry.y * older);
            older = minor;
            minor = next;
            above &= minor > 0;
        }
        const int below = __syncthreads_count(!above);
        const bool missed = below == THREADS && guessed;
        low = below == THREADS ? high : fma(width, (double)below, low);
        high = missed ? end : fmax(low, fmin(high, low + width));
        guessed = false;
    }
    // s from its last entry to its first, the direction in which it grows.
    const double theta = 0.5 * (low + high);
    double after = 0.0, entry = 1.0, squares = 1.0, side = 0.0;
    if (block.thread == 0) block.entries[t.size - 1] = 1.0;
    for (int i = t.size - 1; i > 0; --i) {
        const double divisor = block.inverse[i - 1] * half;
        const double before = fma((theta - block.scaled[i].x) * divisor, entry, -(side * divisor) * after);
        side = block.beside[i - 1] * by;
        after = entry;
        entry = before;
        squares = fma(entry, entry, squares);
        if (block.thread == 0) block.entries[i - 1] = entry;
    }
    const double norm = rsqrt(squares);
    t.theta = fma(theta, half, middle);
    t.residual = t.last * norm;
    return norm;
}

// vector = Q s, all warps together.
__device__ void combine(Block& block, int size, double norm, Vector& vector) {
    __syncthreads();
    Vector part = {};
    for (int i = block.warp; i < size; i += WARPS)
        for (int p = 0; p < PARTS; ++p) part[p] = fma(block.entries[i], block.basis[i * PLACES + block.lane + 32 * p], part[p]);
    for (int p = 0; p < PARTS; ++p) part[p] *= norm;
    put(block, part);
    __syncthreads();
    for (int p = 0; p < PARTS; ++p) {
        vector[p] = 0.0;
        for (int i = 0; i < WARPS; ++i) vector[p] += block.copies[i * PLACES + block.lane + 32 * p];
    }
    __syncthreads();
}

// Lanczos' method from `vector`, which becomes the eigenvector, with theta. Looks at T first when it has `first` rows, and
// sets `first` to what would have been right. Returns whether the residual is small.
__device__ bool lanczos(Block& block, const Tile& tile, Vector& vector, double& theta, int& first) {
    Tridiagonal t = {0, LARGEST, -LARGEST, -LARGEST, 0.0, 0.0, 0.0, -1.0};
    const double length = dot(vector, vector);
    const double scale = length > 0 ? rsqrt(length) : 0.0;
    for (int p = 0; p < PARTS; ++p) vector[p] *= scale;
    for (int next = first;;) {
        if (block.warp == t.size % WARPS)
            for (int p = 0; p < PARTS; ++p) block.basis[t.size * PLACES + block.lane + 32 * p] = vector[p];
        put(block, vector);
        const double* product = multiply(block, tile) + block.lane;
        const double* before = block.basis + max(t.size - 1, 0) * PLACES + block.lane;  // at first its factor t.last is zero
        Vector rest;
        for (int p = 0; p < PARTS; ++p) rest[p] = product[32 * p];
        const double a = dot(vector, rest);
        for (int p = 0; p < PARTS; ++p) rest[p] = fma(-a, vector[p], fma(-t.last, before[32 * p], rest[p]));
        const double squares = dot(rest, rest);
        const double inverse = squares > 0 ? rsqrt(squares) : 0.0, b = squares * inverse;
        if (block.thread == 0) {
            block.diagonal[t.size] = a;
            block.beside[t.size] = b;
            block.inverse[t.size] = inverse;
        }
        ++t.size;
        t.low = fmin(t.low, a - t.last - b);
        t.high = fmax(t.high, a + t.last + b);
        t.most_diagonal = fmax(t.most_diagonal, a);
        t.most_beside = fmax(t.most_beside, b);
        t.last = b;
        const bool ends = !(b > RESIDUAL * fmax(t.high, -t.low)) || t.size == STEPS;
        // A small b says that the vector may be there. Further vectors would repeat it, and their sum could cancel.
        if (t.size >= next || b < 0.01 * t.most_beside || ends) {
            const double norm = look(block, t), wanted = RESIDUAL * fmax(t.theta, 1.0);
            if (!(t.residual > wanted) || ends) {
                combine(block, t.size, norm, vector);
                theta = t.theta;
                first = max(3, t.size - 1);
                return !(t.residual > wanted) && fabs(dot(vector, vector) - 1) < 1e-6;
            }
            next = t.size + max(1, (int)(0.25f * log2f((float)(t.residual / wanted))));
        }
        for (int p = 0; p < PARTS; ++p) vector[p] = rest[p] * inverse;
    }
}

// Projections of the points on the direction of largest variance, about their mean.
__device__ void project(
    Block& block, const double* gram, int n, const Vector& share, const Vector& root, int& first, Vector& along) {
    Vector vector;
    Tile tile;
    double extent = 0.0;
    for (int p = 0; p < PARTS; ++p) {  // to start with, numbers without any symmetry
        unsigned hash = (block.lane + 32 * p + 1) * 2654435761u;
        hash = (hash ^ hash >> 15) * 2246822519u;
        vector[p] = (hash ^ hash >> 13) / 2147483648.0 - 1.0;
        along[p] = 0.0;
        if (root[p] > 0) extent = block.lane + 32 * p + 1;
    }
    extent = largest(extent);
    double off = dot(vector, root);
    for (int p = 0; p < PARTS; ++p) vector[p] = root[p] > 0 ? fma(-off, root[p], vector[p]) : 0.0;  // A root = 0
    if (!(form(block, gram, n, share, root) > 0)) return;  // all points coincide
    for (int round = 0; round < ROUNDS; ++round) {
        for (int i = 0; i < SQUARINGS; ++i) square(block, (int)extent);
        for (int r = 0; r < TILE; ++r)
            for (int c = 0; c < TILE; ++c) tile[r][c] = block.matrix[(block.row + 16 * r) * PITCH + block.column + 16 * c];
        __syncthreads();
        double theta;
        bool done = lanczos(block, tile, vector, theta, first);
        for (int again = 0; again < 2 && !done; ++again) {  // from a vector that is almost there
            int soon = 2;
            done = lanczos(block, tile, vector, theta, soon);
        }
        if (done) break;
        // The largest eigenvalues are close: further apart with P in place of A, whose eigenvalues are between -1 and theta or above.
        first = 3;
        const double scale = 2 / (theta + 1);
        for (int r = 0; r < TILE; ++r)
            for (int c = 0; c < TILE; ++c) {
                const int i = block.row + 16 * r, j = block.column + 16 * c;
                block.matrix[i * PITCH + j] = fma(scale, tile[r][c], i == j ? scale - 1 : 0.0);
            }
        __syncthreads();
    }
    // Products of the points with the direction, which is their combination with these factors.
    off = dot(vector, root);
    for (int p = 0; p < PARTS; ++p) vector[p] = fma(-off, share[p], root[p] * vector[p]);
    load(block, tile, gram, n);
    put(block, vector);
    const double* product = multiply(block, tile) + block.lane;
    for (int p = 0; p < PARTS; ++p) along[p] = product[32 * p];
    const double mean = dot(share, along), value = dot(vector, along);
    const double scale = value > 0 ? rsqrt(value) : 0.0;  // the direction has length sqrt(value)
    for (int p = 0; p < PARTS; ++p) along[p] = root[p] > 0 ? (along[p] - mean) * scale : 0.0;
}

// Subtracts the median of the points that have weight: of an even number the mean of the middle two.
__device__ void about_median(Block& block, const Vector& weight, Vector& along) {
    double* values = block.products + (block.turn ^= 1) * PLACES;
    double* middle = block.entries;
    double count = 0.0;
    for (int p = 0; p < PARTS; ++p) count += weight[p] > 0;
    const int points = (int)total(count);
    if (block.warp == 0)
        for (int p = 0; p < PARTS; ++p) values[block.lane + 32 * p] = weight[p] > 0 ? along[p] : LARGEST;
    __syncthreads();
    if (block.thread < PLACES && values[block.thread] < LARGEST) {
        const double mine = values[block.thread];
        int rank = 0;
        for (int i = 0; i < PLACES; ++i) rank += values[i] < mine || (values[i] == mine && i < block.thread);
        if (rank == (points - 1) / 2) middle[0] = mine;
        if (rank == points / 2) middle[1] = mine;
    }
    __syncthreads();
    const double median = 0.5 * (middle[0] + middle[1]);
    for (int p = 0; p < PARTS; ++p) along[p] = weight[p] > 0 ? along[p] - median : 0.0;
    __syncthreads();
}

__device__ double sum_of(const Vector& weight) {
    double sum = 0.0;
    for (int p = 0; p < PARTS; ++p) sum += weight[p];
    return total(sum);
}

// gram [b, n, n] products about any origin, valid [b, n], goals [b] weight to reach; output [b, n] weights that sum to one.
extern "C" __global__ void __launch_bounds__(THREADS, TILE < 8 ? 2 : 1)
spectral_filter(const double* gram, const unsigned char* valid, const double* goals, double* output, int n) {
    extern __shared__ double memory[];
    Block block = block_in(memory);
    const long long set = blockIdx.x;
    const double goal = goals[set];

    Vector weight, share, root, along, best;
    for (int p = 0; p < PARTS; ++p) {
        const int i = block.lane + 32 * p;
        weight[p] = i < n && valid[set * n + i] ? 1.0 : 0.0;
    }
    double heavy = sum_of(weight), least = LARGEST;
    for (int p = 0; p < PARTS; ++p) best[p] = weight[p] / heavy;
    bool going = CAF ? heavy > goal : heavy - goal > 1e-12 * goal;
    int first = 3;
    for (int step = 0; going && step < n; ++step) {  // every full step removes at least one point
        for (int p = 0; p < PARTS; ++p) {
            share[p] = weight[p] / heavy;
            root[p] = sqrt(share[p]);
        }
        project(block, gram + set * n * n, n, share, root, first, along);
        if (MEDIAN) about_median(block, weight, along);
        double peak = 0.0;
        for (int p = 0; p < PARTS; ++p) {
            along[p] *= along[p];
            peak = fmax(peak, along[p]);
        }
        peak = largest(peak);
        if (CAF) {
            const double value = dot(weight, along) / heavy;
            for (int p = 0; p < PARTS; ++p) {
                if (value < least) best[p] = share[p];
                weight[p] = peak > 0 ? weight[p] * (1 - along[p] / peak) : 0.0;
            }
            least = fmin(least, value);
            heavy = sum_of(weight);
            going = heavy > goal;
        } else {
            for (int p = 0; p < PARTS; ++p) along[p] = weight[p] * (along[p] / (peak > 0 ? peak : 1.0));
            const double taken = sum_of(along);
            const double fraction = fmin(fmax((heavy - goal) / (taken > 0 ? taken : 1.0), 0.0), 1.0);
            for (int p = 0; p < PARTS; ++p) {
                weight[p] -= fraction * along[p];
                if (!(weight[p] > EMPTY)) weight[p] = 0.0;
            }
            heavy = sum_of(weight);
            going = heavy - goal > 1e-12 * goal && taken > 0;
        }
    }
    if (block.warp == 0)
        for (int p = 0; p < PARTS; ++p) {
            const int i = block.lane + 32 * p;
            if (i < n) output[set * n + i] = CAF ? best[p] : weight[p] / heavy;
        }
}
