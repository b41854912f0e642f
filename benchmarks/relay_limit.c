/* The limit of an all_reduce in shared memory: the relay of
 * src/ringleader/engine/shared_memory/relay.py, compiled, without Python around it.
 *
 *     cc -O3 -march=native benchmarks/relay_limit.c -o /tmp/relay_limit
 *     /tmp/relay_limit RANKS [LANES]
 *
 * Every rank has private tensors of 4, 16 and 64 MiB and sums them with all others, in
 * place. LANES processes per rank share its work: each runs a relay of its own over an
 * equal range, as an ideal helper thread would. Waiting is spinning. Printed are the
 * time of a call on the slowest process, the median of 5 rounds, and where the time
 * goes, the mean of all processes.
 *
 * READERS is how many ranks read a sum from one slot. The relay has all others read the
 * same slot; with fewer, the rank that completes a sum writes it to several slots. A
 * line that many cores have read is slow to overwrite when all ranks do that at once.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX = 64, ROUNDS = 5, LIMIT_S = 600, IN = 1, WAIT, ADD, OUT, PARTS };
typedef struct {
    _Alignas(128) atomic_long value;
} Counter;
typedef struct {
    Counter turns[MAX], barrier[MAX], failed;
    double times[MAX][PARTS];
} Shared;

static Shared *shared;
static float *slots, *tensor;
static int ranks, lanes, rank, lane, self;
static long barriers, turn, pieces_done;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* End this process, and by the flag that all look at while they wait, the others. */
static void fail(const char *what)
{
    fprintf(stderr, "relay_limit: %s failed\n", what);
    if (shared)
        atomic_store(&shared->failed.value, 1);
    exit(1);
}

static void await(Counter *counter, long value)
{
    for (int spins = 0; atomic_load_explicit(&counter->value, memory_order_acquire) < value; spins++)
        if (spins > 20000) {
            if (atomic_load(&shared->failed.value))
                exit(1);
            sched_yield();
            spins = 0;
        }
}

static void barrier(void)
{
    barriers++;
    atomic_store(&shared->barrier[self].value, barriers);
    for (int q = 0; q < ranks * lanes; q++)
        await(&shared->barrier[q], barriers);
}

static void add(float *restrict to, const float *restrict from, long count)
{
    for (long i = 0; i < count; i++)
        to[i] += from[i];
}

/* Where part `q` of a piece begins: the last piece is split evenly, too. */
static long cut(long count, long part, long piece, long q)
{
    long start = piece * part * ranks, left = count - start;
    return start + (left < part * ranks ? left : part * ranks) * q / ranks;
}

/* One all_reduce of `count` floats in parts of `part`; `times` gets what each kind took. */
static void all_reduce(long count, long part, int readers, double *times)
{
    int num_slots = ranks == 2 ? 3 : ranks + 2, copies = (ranks - 2 + readers) / readers;
    long pieces = (count + part * ranks - 1) / (part * ranks);
    Counter *turns = shared->turns + lane * ranks;
    double then = now_s(), now;
#define SLOT(copy, q, piece) \
    (slots + ((((long)lane * ranks + (copy)) * ranks + (q)) * num_slots + (pieces_done + (piece)) % num_slots) * (part + 1024))
#define AT(q, piece) cut(count, part, piece, q)
#define LENGTH(q, piece) (AT((q) + 1, piece) - AT(q, piece))
#define TOOK(kind) (now = now_s(), times[kind] += now - then, then = now)
    for (long t = 0; t < pieces + ranks; t++) {
        if (t < pieces)
            memcpy(SLOT(0, rank, t), tensor + AT(rank, t), 4 * LENGTH(rank, t));
        TOOK(IN);
        if (t > 0)
            await(&turns[(rank + ranks - 1) % ranks], turn);
        TOOK(WAIT);
        for (int step = 1; step < ranks; step++) {
            long piece = t - step, q = (rank - step + ranks) % ranks;
            if (piece >= 0 && piece < pieces)
                add(SLOT(0, q, piece), tensor + AT(q, piece), LENGTH(q, piece));
        }
        TOOK(ADD);
        long piece = t - (ranks - 1), mine = (rank + 1) % ranks;
        if (piece >= 0 && piece < pieces) {
            long at = AT(mine, piece), bytes = 4 * LENGTH(mine, piece);
            memcpy(tensor + at, SLOT(0, mine, piece), bytes);
            for (int copy = 1; copy < copies; copy++)
                memcpy(SLOT(copy, mine, piece), tensor + at, bytes);
        }
        TOOK(OUT);
        if (t > 0)
            for (int q = 0; q < ranks; q++)
                await(&turns[q], turn);
        TOOK(WAIT);
        piece = t - ranks;
        for (int step = 0; piece >= 0 && piece < pieces && step < ranks - 1; step++) {
            long q = (rank - step + ranks) % ranks;
            memcpy(tensor + AT(q, piece), SLOT(step / readers, q, piece), 4 * LENGTH(q, piece));
        }
        TOOK(OUT);
        if (t < pieces + ranks - 1)
            atomic_store_explicit(&turns[rank].value, ++turn, memory_order_release);
    }
    pieces_done += pieces;
}

static void check(long count, long part, int readers)
{
    double ignored[PARTS];
    for (long i = 0; i < count; i++)
        tensor[i] = rank + 1 + i % 7;
    all_reduce(count, part, readers, ignored);
    for (long i = 0; i < count; i++)
        if (tensor[i] != ranks * (ranks + 1) / 2.0f + ranks * (i % 7))
            fail("the check of the values");
    memset(tensor, 0, 4 * count);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(long mib, long part, int readers)
{
    long count = (mib << 18) / lanes, calls = 4 + 200 / mib;
    double slowest[ROUNDS], parts[PARTS] = {0};
    check(count, part, readers);
    for (int round = 0; round < ROUNDS; round++) {
        double *times = shared->times[self];
        barrier();
        memset(times, 0, sizeof shared->times[self]);
        double start = now_s();
        for (int call = 0; call < calls; call++)
            all_reduce(count, part, readers, times);
        times[0] = now_s() - start;
        barrier();
        slowest[round] = 0;
        for (int q = 0; q < ranks * lanes; q++) {
            double took = shared->times[q][0] / calls;
            slowest[round] = took > slowest[round] ? took : slowest[round];
            for (int kind = IN; kind < PARTS; kind++)
                parts[kind] += shared->times[q][kind] / calls / ranks / lanes / ROUNDS;
        }
        barrier();
    }
    qsort(slowest, ROUNDS, sizeof *slowest, compare);
    if (!self) {
        printf("%d ranks x %d, %2ld MiB, %d readers: %7.3f ms (%.3f to %.3f); copying in %.3f, adding %.3f, "
               "copying out %.3f, waiting %.3f\n",
               ranks, lanes, mib, readers, slowest[ROUNDS / 2] * 1e3, slowest[0] * 1e3, slowest[ROUNDS - 1] * 1e3,
               parts[IN] * 1e3, parts[ADD] * 1e3, parts[OUT] * 1e3, parts[WAIT] * 1e3);
        fflush(stdout);
    }
}

static void *map(size_t bytes, int kind)
{
    void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        fail("mmap");
    return found;
}

int main(int argc, char **argv)
{
    ranks = argc > 1 ? atoi(argv[1]) : 2;
    lanes = argc > 2 ? atoi(argv[2]) : 1;
    if (ranks < 2 || lanes < 1 || ranks * lanes > MAX) {
        fprintf(stderr, "usage: relay_limit RANKS [LANES], at most %d processes\n", MAX);
        return 2;
    }
    long part = (9L << 20) / (ranks * (ranks + 2)) / 4096 * 1024; /* as the relay's */
    part = part < 1024 ? 1024 : part > 65536 ? 65536 : part;
    shared = map(sizeof *shared, MAP_SHARED);
    slots = map(4L * lanes * ranks * ranks * (ranks + 2) * (part + 1024), MAP_SHARED);
    for (int i = 1; i < ranks * lanes && !self; i++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (!child) {
            self = i;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        }
    }
    alarm(LIMIT_S); /* a process that was killed tells nobody */
    rank = self % ranks;
    lane = self / ranks;
    tensor = map(64 << 20, MAP_PRIVATE);
    for (long mib = 4; mib <= 64; mib *= 4) {
        measure(mib, part, ranks - 1);
        if (ranks > 4)
            measure(mib, part, 3);
        if (ranks > 3)
            measure(mib, part, 2);
    }
    int status = 0, worst = 0;
    while (!self && wait(&status) > 0)
        worst |= status;
    return worst != 0;
}
