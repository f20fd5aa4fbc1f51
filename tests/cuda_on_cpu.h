// Runs a kernel for one block of 256 threads at a time on a CPU: each thread on a stack of its own, one after the other between
// two barriers. What CUDA C++ adds to C++ is defined as far as our kernels use it. Include it before the kernel's source.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#define __device__ static inline
#define __global__
#define __launch_bounds__(...)
#define __shared__

using std::max;
using std::min;

struct double2 {
    double x, y;
};

static double2 make_double2(double x, double y) { return {x, y}; }
static double rsqrt(double value) { return 1 / std::sqrt(value); }

double memory[1 << 15];  // shared by a block; a kernel may use as many bytes as it is started with
static struct {
    int x;
} threadIdx, blockIdx;

namespace emulated {
constexpr int THREADS = 256, LANES = 32, STACK = 1 << 16;
static jmp_buf contexts[THREADS], outside;
static bool running[THREADS];
static ucontext_t starts[THREADS], origin;
static std::function<void()> kernel;

struct Barrier {
    int arrived = 0, passed = 0, votes = 0, result = 0;
};
static Barrier block, warps[THREADS / LANES];
static double2 values[2][THREADS];
static int turns[THREADS];

static void resume_next() {
    for (int after = 1; after <= THREADS; ++after) {
        const int next = (threadIdx.x + after) % THREADS;
        if (running[next]) {
            threadIdx.x = next;
            _longjmp(contexts[next], 1);
        }
    }
    _longjmp(outside, 1);
}

static int wait(Barrier& barrier, int threads, bool vote) {
    const int turn = barrier.passed;
    barrier.votes += vote;
    if (++barrier.arrived == threads) {
        barrier.result = barrier.votes;
        barrier.arrived = barrier.votes = 0;
        ++barrier.passed;
    }
    while (turn == barrier.passed)
        if (!_setjmp(contexts[threadIdx.x])) resume_next();
    return barrier.result;
}

static void one_thread() {
    const int mine = threadIdx.x;
    if (!_setjmp(contexts[mine])) swapcontext(&starts[mine], &origin);
    kernel();
    running[threadIdx.x] = false;
    resume_next();
}

// Returns the number of entries that were written behind `shared` bytes of memory.
static int run(int blocks, int shared, std::function<void()> work) {
    int behind = 0;
    static std::vector<char> stacks(THREADS * STACK);
    kernel = work;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        std::fill(std::begin(memory), std::end(memory), NAN);
        for (int thread = 0; thread < THREADS; ++thread) {
            threadIdx.x = thread;
            turns[thread] = 0;
            getcontext(&starts[thread]);
            starts[thread].uc_stack.ss_sp = &stacks[thread * STACK];
            starts[thread].uc_stack.ss_size = STACK;
            starts[thread].uc_link = nullptr;
            makecontext(&starts[thread], one_thread, 0);
            swapcontext(&origin, &starts[thread]);
            running[thread] = true;
        }
        if (!_setjmp(outside)) resume_next();
        behind += std::count_if(memory + shared / sizeof(double), std::end(memory), [](double entry) { return entry == entry; });
    }
    return behind;
}
}  // namespace emulated

static int __syncthreads_count(bool vote) { return emulated::wait(emulated::block, emulated::THREADS, vote); }
static void __syncthreads() { __syncthreads_count(false); }
static void __syncwarp() { emulated::wait(emulated::warps[threadIdx.x / emulated::LANES], emulated::LANES, false); }

static double __shfl_xor_sync(unsigned, double value, int mask) {
    const int mine = threadIdx.x, turn = emulated::turns[mine] ^= 1;
    emulated::values[turn][mine].x = value;
    __syncwarp();
    return emulated::values[turn][mine ^ mask].x;
}

// mma.m8n8k4 for float64
static void multiply_small(double* sums, double left, double right) {
    const int mine = threadIdx.x, lane = mine % emulated::LANES, turn = emulated::turns[mine] ^= 1;
    emulated::values[turn][mine] = {left, right};
    __syncwarp();
    const double2* values = emulated::values[turn] + mine - lane;
    for (int side = 0; side < 2; ++side)
        for (int k = 0; k < 4; ++k)
            sums[side] = std::fma(values[lane / 4 * 4 + k].x, values[4 * (lane % 4 * 2 + side) + k].y, sums[side]);
}
